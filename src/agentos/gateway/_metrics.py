"""Metrics of a gateway for Prometheus. Names follow OpenTelemetry's conventions for generative AI where those exist.

Requests add to plain numbers, and the page is made of them when it is asked for: objects of prometheus-client would
take longer to count than most rules of the gateway. No label holds a key, a token or anything else that a client chose
freely, except for the names of models, whose number is limited. Used on the gateway's loop only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from agentos.providers.usage import TokenUsage

# Models that have a label of their own; all others share one.
MAX_MODELS = 100
# Upper bounds of a histogram, in seconds.
BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_PROVIDER = "gen_ai_provider_name"


class _Durations:
    """A histogram of seconds."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds


class Metrics:
    """What a gateway counts."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], _Durations] = defaultdict(_Durations)  # provider, status
        self._first: dict[str, _Durations] = defaultdict(_Durations)  # provider
        self._tokens: dict[tuple[str, str], list[int]] = {}  # provider, model -> input, output, cached
        self._held: dict[str, float] = defaultdict(float)  # provider
        self._refused: dict[tuple[str, str], int] = defaultdict(int)  # provider, kind
        self._models: set[str] = set()

    def request(self, provider: str, status: int, seconds: float) -> None:
        """Count an answered request, and how long that took."""
        self._requests[provider, status].add(seconds)

    def held(self, provider: str, seconds: float) -> None:
        """Count seconds that a request waited for a credential."""
        self._held[provider] += seconds

    def refused(self, provider: str, kind: str) -> None:
        """Count an answer of a provider that its client never saw."""
        self._refused[provider, kind] += 1

    def first_byte(self, provider: str, seconds: float) -> None:
        """Count the time until the answer of a provider began."""
        self._first[provider].add(seconds)

    def used(self, provider: str, model: str | None, usage: TokenUsage) -> None:
        """Count the tokens of a request."""
        tokens = self._tokens.get((provider, model or ""))
        if tokens is None:
            tokens = self._tokens.setdefault((provider, self._label(model)), [0, 0, 0])
        tokens[0] += usage.input_tokens
        tokens[1] += usage.output_tokens
        tokens[2] += usage.cached_tokens

    def _label(self, model: str | None) -> str:
        if model is None or (model not in self._models and len(self._models) >= MAX_MODELS):
            return "other"
        self._models.add(model)
        return model

    def text(self, under_way: int) -> tuple[bytes, str] | None:
        """Return the page for Prometheus and its content type; None if prometheus-client is not installed."""
        try:
            from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
        except ImportError:
            return None
        return generate_latest(_Page(list(self._families(under_way)))), CONTENT_TYPE_LATEST

    def _families(self, under_way: int) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        durations: dict[tuple[str, ...], _Durations] = {
            (provider, str(status)): each for (provider, status), each in self._requests.items()
        }
        yield _histogram("gen_ai_server_request_duration_seconds", "Time from a request to the end of its answer.",
                         [_PROVIDER, "http_response_status_code"], durations)  # fmt: skip
        yield _histogram("gen_ai_server_time_to_first_token_seconds",
                         "Time from the last sending to the first bytes of the answer.", [_PROVIDER],
                         {(provider,): each for provider, each in self._first.items()})  # fmt: skip
        tokens = CounterMetricFamily("gen_ai_client_token_usage", "Tokens, by type.",
                                     labels=[_PROVIDER, "gen_ai_request_model", "gen_ai_token_type"])  # fmt: skip
        for (provider, model), amounts in self._tokens.items():
            for kind, amount in zip(("input", "output", "cached"), amounts, strict=True):
                tokens.add_metric([provider, model, kind], amount)
        yield tokens
        held = CounterMetricFamily("agentos_gateway_held_seconds", "Seconds that requests waited for a credential.",
                                   labels=[_PROVIDER])  # fmt: skip
        for provider, seconds in self._held.items():
            held.add_metric([provider], seconds)
        yield held
        refused = CounterMetricFamily("agentos_gateway_refusals", "Answers of providers that clients never saw.",
                                      labels=[_PROVIDER, "kind"])  # fmt: skip
        for (provider, kind), count in self._refused.items():
            refused.add_metric([provider, kind], count)
        yield refused
        yield GaugeMetricFamily("agentos_gateway_requests_under_way", "Requests that are not answered yet.", under_way)


class _Page:
    """A registry of prometheus-client as far as it is needed: families of one page."""

    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> list[Any]:
        """Return the families."""
        return self._families


def _histogram(name: str, text: str, labels: list[str], durations: Mapping[tuple[str, ...], _Durations]) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, text, labels=labels)
    bounds = [*(str(float(bound)) for bound in BUCKETS), "+Inf"]
    for values, each in durations.items():
        family.add_metric(values, list(zip(bounds, accumulate(each.counts), strict=True)), each.seconds)
    return family
