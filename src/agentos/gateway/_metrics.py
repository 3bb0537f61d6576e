"""Metrics of a gateway for Prometheus. Names follow OpenTelemetry's conventions for generative AI where those exist.

No label holds a key, a token or anything else that a client chose freely, except for the names of models, whose number
is limited.
"""

from __future__ import annotations

from typing import Any, Protocol

from agentos.providers.usage import TokenUsage

# Models that have a label of their own; all others share one.
MAX_MODELS = 100


class Metrics(Protocol):
    """What a gateway counts."""

    def request(self, provider: str, status: int, seconds: float) -> None:
        """Count an answered request, by whom it was answered, and how long that took."""

    def held(self, provider: str, seconds: float) -> None: ...

    def refused(self, provider: str, kind: str) -> None: ...

    def first_byte(self, provider: str, seconds: float) -> None: ...

    def used(self, provider: str, model: str | None, usage: TokenUsage) -> None: ...

    def text(self, under_way: int) -> tuple[bytes, str] | None:
        """Return the page for Prometheus and its content type; None if nothing is counted."""


class NoMetrics:
    """Counts nothing: prometheus-client is not installed."""

    def request(self, provider: str, status: int, seconds: float) -> None:
        """No-op: nothing is counted."""

    def held(self, provider: str, seconds: float) -> None:
        """No-op: nothing is counted."""

    def refused(self, provider: str, kind: str) -> None:
        """No-op: nothing is counted."""

    def first_byte(self, provider: str, seconds: float) -> None:
        """No-op: nothing is counted."""

    def used(self, provider: str, model: str | None, usage: TokenUsage) -> None:
        """No-op: nothing is counted."""

    def text(self, under_way: int) -> tuple[bytes, str] | None:
        del under_way
        return None


def make_metrics() -> Metrics:
    """Return metrics; those that count nothing if prometheus-client is not installed."""
    try:
        import prometheus_client
    except ImportError:
        return NoMetrics()
    return PrometheusMetrics(prometheus_client.CollectorRegistry())


class PrometheusMetrics:
    """Counts in a registry of its own. Children of metrics are kept: looking them up costs more than counting."""

    def __init__(self, registry: Any) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        buckets = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
        self._registry = registry
        self._models: set[str] = set()
        self._children: dict[tuple[Any, ...], Any] = {}
        options: dict[str, Any] = {"registry": registry}
        self._requests = Histogram(
            "gen_ai_server_request_duration_seconds", "Time from a request to the end of its answer.",
            ["gen_ai_provider_name", "http_response_status_code"], buckets=buckets, **options)  # fmt: skip
        self._first = Histogram(
            "gen_ai_server_time_to_first_token_seconds", "Time from the last sending to the first bytes of the answer.",
            ["gen_ai_provider_name"], buckets=buckets, **options)  # fmt: skip
        self._tokens = Counter(
            "gen_ai_client_token_usage", "Tokens, by type.",
            ["gen_ai_provider_name", "gen_ai_request_model", "gen_ai_token_type"], **options)  # fmt: skip
        self._held = Counter(
            "agentos_gateway_held_seconds", "Seconds that requests waited for a credential.",
            ["gen_ai_provider_name"], **options)  # fmt: skip
        self._refused = Counter(
            "agentos_gateway_refusals", "Answers of providers that clients never saw.",
            ["gen_ai_provider_name", "kind"], **options)  # fmt: skip
        self._under_way = Gauge("agentos_gateway_requests_under_way", "Requests that are not answered yet.",
                                **options)  # fmt: skip

    def request(self, provider: str, status: int, seconds: float) -> None:
        self._child(self._requests, provider, str(status)).observe(seconds)

    def held(self, provider: str, seconds: float) -> None:
        self._child(self._held, provider).inc(seconds)

    def refused(self, provider: str, kind: str) -> None:
        self._child(self._refused, provider, kind).inc()

    def first_byte(self, provider: str, seconds: float) -> None:
        self._child(self._first, provider).observe(seconds)

    def used(self, provider: str, model: str | None, usage: TokenUsage) -> None:
        label = self._label(model)
        for kind, tokens in zip(("input", "output", "cached"), usage, strict=False):
            if tokens:
                self._child(self._tokens, provider, label, kind).inc(tokens)

    def text(self, under_way: int) -> tuple[bytes, str] | None:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        self._under_way.set(under_way)
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _label(self, model: str | None) -> str:
        if model is None or (model not in self._models and len(self._models) >= MAX_MODELS):
            return "other"
        self._models.add(model)
        return model

    def _child(self, metric: Any, *labels: str) -> Any:
        key = metric, *labels
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child
