"""Estimates: the tokens that a request will use, corrected by what earlier requests of the model really used."""

from __future__ import annotations

from collections import OrderedDict, deque

from agentos.providers.usage import TokenUsage

# Characters of text per token, before anything is known of a model.
BYTES_PER_TOKEN = 4
# Output tokens of a request, before anything is known of a model.
DEFAULT_OUTPUT = 500
# Answers of a model that the running figures are made of.
MAX_ANSWERS = 64
# Models that are remembered; then the one that was used least recently is forgotten.
MAX_MODELS = 500
# Weight of the newest answer in the running ratio of input tokens to estimated ones.
_WEIGHT = 0.1


class _ModelFigures:
    __slots__ = ("outputs", "p90", "ratio")

    def __init__(self) -> None:
        self.ratio = 1.0
        self.outputs: deque[int] = deque(maxlen=MAX_ANSWERS)
        self.p90: int | None = None  # None: to be calculated


class Estimates:
    """Running figures per model."""

    def __init__(self) -> None:
        self._models: OrderedDict[str, _ModelFigures] = OrderedDict()

    def of(self, model: str | None, text_bytes: int, max_tokens: int | None) -> tuple[int, int]:
        """Return input and output tokens that a request is expected to use: its text, and the 90th percentile of what
        the model produced, never more than it may."""
        figures = self._models.get(model or "")
        expected = DEFAULT_OUTPUT if figures is None or not figures.outputs else _p90(figures)
        ratio = 1.0 if figures is None else figures.ratio
        return round(text_bytes / BYTES_PER_TOKEN * ratio), expected if max_tokens is None else min(
            expected, max_tokens
        )

    def learn(self, model: str | None, text_bytes: int, usage: TokenUsage) -> None:
        """Take what a request really used into account."""
        figures = self._models.get(model or "")
        if figures is None:
            figures = self._models[model or ""] = _ModelFigures()
            if len(self._models) > MAX_MODELS:
                self._models.popitem(last=False)
        elif len(self._models) > 1:
            self._models.move_to_end(model or "")
        figures.outputs.append(usage.output_tokens)
        figures.p90 = None
        plain = text_bytes / BYTES_PER_TOKEN
        # All of the input: what is read from a cache differs from request to request.
        whole_input = usage.input_tokens + usage.cached_tokens
        if plain >= 1 and whole_input:
            ratio = min(max(whole_input / plain, 0.05), 20.0)
            figures.ratio += _WEIGHT * (ratio - figures.ratio)


def _p90(figures: _ModelFigures) -> int:
    if figures.p90 is None:
        ordered = sorted(figures.outputs)
        figures.p90 = ordered[min(len(ordered) - 1, len(ordered) * 9 // 10)]
    return figures.p90
