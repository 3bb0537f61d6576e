"""A benchmark in a process of its own."""

from benchmarks.alone import run_alone


def test_a_benchmark_that_takes_too_long_is_ended():
    outcome = run_alone("items", [], limit=0.01)  # less than an interpreter needs to start
    assert (outcome.rows, outcome.error) == ([], "took too long")


def test_a_benchmark_that_ends_without_a_result_has_failed():
    outcome = run_alone("memory", ["no-such-row"])  # it takes no rows
    assert (outcome.rows, outcome.error) == ([], "TypeError")
