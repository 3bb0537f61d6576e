"""`run_isolated` reports benchmarks that take too long or end without a result."""

from benchmarks.isolated import run_isolated


def test_benchmark_over_its_timeout_is_ended():
    outcome = run_isolated("items", [], limit=0.01)  # less than an interpreter needs to start
    assert (outcome.rows, outcome.error) == ([], "took too long")


def test_benchmark_that_raises_has_failed():
    outcome = run_isolated("memory", ["no-such-row"])  # `memory.rows` takes no arguments
    assert (outcome.rows, outcome.error) == ([], "TypeError")
