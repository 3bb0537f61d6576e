"""Prices of models: those of the keys file, then the published ones."""

from __future__ import annotations

from contextlib import suppress

import pytest
from genai_prices import Usage, calc_price
from genai_prices.data import providers
from hypothesis import given
from hypothesis import strategies as st

from agentos.costs.prices import Price, Prices

COUNTS = {"input_tokens": 1_000_000, "output_tokens": 100_000, "cached_tokens": 500_000, "cache_write_tokens": 200_000}


def test_declared_price_counts_each_kind_of_token() -> None:
    prices = Prices({"mine": Price(input=3, output=15, cache_read=0.3, cache_write=3.75)})
    assert prices.cost("mine", None, **COUNTS) == pytest.approx(0.8 * 3 + 0.2 * 3.75 + 0.5 * 0.3 + 0.1 * 15)


def test_cache_costs_as_much_as_input_unless_declared() -> None:
    prices = Prices({"mine": Price(input=3, output=15)})
    assert prices.cost("mine", None, **COUNTS) == pytest.approx(1.5 * 3 + 0.1 * 15)


def test_name_wins_over_pattern_and_pattern_over_published_price() -> None:
    prices = Prices({"gpt-*": Price(1, 1), "gpt-4o": Price(2, 2)})
    assert prices.declared("gpt-4o") == Price(2, 2)
    assert prices.declared("gpt-4o-mini") == Price(1, 1)
    assert prices.cost("gpt-4o-mini", "openai", input_tokens=1_000_000, output_tokens=0) == 1


def test_published_price_separates_cache_reads_and_writes() -> None:
    counts = {"input_tokens": 100_000, "output_tokens": 100_000, "cached_tokens": 50_000, "cache_write_tokens": 20_000}
    cost = Prices().cost("claude-sonnet-4-5", "anthropic", **counts)
    assert cost == pytest.approx(0.08 * 3 + 0.02 * 3.75 + 0.05 * 0.3 + 0.1 * 15)


@pytest.mark.parametrize(
    ("model", "provider"), [("gpt-4o", "openai"), ("claude-sonnet-4-5", "anthropic"), ("gemini-2.5-pro", "gemini")]
)
@given(counts=st.tuples(*[st.integers(0, 20_000) | st.integers(0, 500_000)] * 4))
def test_cost_is_that_of_the_package(model: str, provider: str, counts: tuple[int, int, int, int]) -> None:
    """Also for models whose long prompts cost more."""
    whole_input, output, cached, written = counts[0] + counts[2] + counts[3], *counts[1:]
    usage = Usage(input_tokens=whole_input, output_tokens=output, cache_read_tokens=cached, cache_write_tokens=written)
    name = {"gemini": "google"}.get(provider, provider)
    expected = float(calc_price(usage, model_ref=model, provider_id=name).total_price)
    cost = Prices().cost(
        model, provider, input_tokens=whole_input - cached, output_tokens=output, cached_tokens=cached,
        cache_write_tokens=written,
    )  # fmt: skip
    assert cost == pytest.approx(expected)


@pytest.mark.parametrize("counts", [(1000, 100, 0, 0), (5000, 10, 2000, 0), (5000, 10, 0, 2000), (400_000, 5000, 9, 9)])
def test_every_published_model_costs_what_the_package_says(counts: tuple[int, int, int, int]) -> None:
    whole_input, output, cached, written = counts
    usage = Usage(input_tokens=whole_input, output_tokens=output, cache_read_tokens=cached, cache_write_tokens=written)
    for provider in providers:
        for model in provider.models:
            expected = None
            with suppress(LookupError, ValueError):
                expected = float(calc_price(usage, model_ref=model.id, provider_id=provider.id).total_price)
            cost = Prices().cost(
                model.id, provider.id, input_tokens=whole_input - cached, output_tokens=output, cached_tokens=cached,
                cache_write_tokens=written,
            )  # fmt: skip
            assert cost == (None if expected is None else pytest.approx(expected)), model.id


@pytest.mark.parametrize(
    ("model", "provider"), [("no-such-model", "openai"), ("gpt-4o", "no-such-provider"), ("", None), ("x" * 9999, None)]
)
def test_unknown_model_has_no_price(model: str, provider: str | None) -> None:
    assert Prices().cost(model, provider, input_tokens=1, output_tokens=1) is None
    assert not Prices().is_known(model, provider)


@pytest.mark.parametrize("provider", ["openai", "azure", None])
def test_known_model_has_a_price(provider: str | None) -> None:
    assert Prices().is_known("gpt-4o", provider)
