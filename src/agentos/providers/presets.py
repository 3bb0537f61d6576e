"""Facts about providers: the variable that their tools read, when their days begin, and a free call that checks a key.

Plain data. A keys file overrides it with a `[provider.NAME]` table. There are no limits: they depend on the account,
and limits that are not declared are learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CheckCall:
    """A GET request that checks a key. The key is in a header, not in the URL: proxies log URLs."""

    path: str  # after the base URL
    key_header: str = "Authorization"
    key_prefix: str = "Bearer "
    headers: Mapping[str, str] = field(default_factory=dict)
    root: str | None = None  # the base URL is cut where this begins: the call is not below it


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    variable: str  # read by the provider's own tools
    base_url: str | None = None  # as the provider's SDK spells it, with or without a version
    check: CheckCall | None = None
    aliases: tuple[str, ...] = ()
    other_variables: tuple[str, ...] = ()  # common alternatives to `variable`
    base_url_variables: tuple[str, ...] = ()  # read by its SDK; the first one that is set counts
    day_resets: str | None = None  # None: midnight UTC, or unknown


_MODELS = CheckCall("/models")

PRESETS = (
    Preset("openai", "OPENAI_API_KEY", "https://api.openai.com/v1", _MODELS, base_url_variables=("OPENAI_BASE_URL",)),
    Preset(
        "anthropic",
        "ANTHROPIC_API_KEY",
        "https://api.anthropic.com",
        CheckCall("/v1/models?limit=1", "x-api-key", "", {"anthropic-version": "2023-06-01"}),
        aliases=("claude",),
        base_url_variables=("ANTHROPIC_BASE_URL",),
    ),
    Preset(
        "gemini",
        "GEMINI_API_KEY",
        "https://generativelanguage.googleapis.com",
        CheckCall("/v1beta/models?pageSize=1", "x-goog-api-key", ""),
        aliases=("google", "google-genai"),
        other_variables=("GOOGLE_API_KEY",),
        base_url_variables=("GOOGLE_GEMINI_BASE_URL",),
        day_resets="00:00 America/Los_Angeles",
    ),
    # Each resource has its own URL: without one in the keys file or the environment there is no check.
    Preset(
        "azure",
        "AZURE_OPENAI_API_KEY",
        None,
        CheckCall("/openai/models?api-version=2024-10-21", "api-key", "", root="/openai"),
        aliases=("azure-openai",),
        base_url_variables=("AZURE_OPENAI_ENDPOINT",),
    ),
    Preset("mistral", "MISTRAL_API_KEY", "https://api.mistral.ai/v1", _MODELS, aliases=("mistralai",)),
    # With /openai/v1, as other clients need it; the provider's SDK adds it itself.
    Preset("groq", "GROQ_API_KEY", "https://api.groq.com/openai/v1", _MODELS),
    Preset(
        "cohere",
        "CO_API_KEY",
        "https://api.cohere.com",
        CheckCall("/v1/models?page_size=1"),
        other_variables=("COHERE_API_KEY",),
        base_url_variables=("CO_API_URL",),
    ),
    Preset("deepseek", "DEEPSEEK_API_KEY", "https://api.deepseek.com", _MODELS),
    # Its list of models needs no key, so it cannot check one.
    Preset("openrouter", "OPENROUTER_API_KEY", "https://openrouter.ai/api/v1", CheckCall("/key")),
    Preset("xai", "XAI_API_KEY", "https://api.x.ai/v1", _MODELS, aliases=("grok",)),
    Preset("together", "TOGETHER_API_KEY", "https://api.together.xyz/v1", _MODELS, aliases=("togetherai",)),
    Preset("fireworks", "FIREWORKS_API_KEY", "https://api.fireworks.ai/inference/v1", _MODELS),
    Preset("cerebras", "CEREBRAS_API_KEY", "https://api.cerebras.ai/v1", _MODELS),
    Preset(
        "github",
        "GITHUB_TOKEN",
        "https://api.github.com",
        CheckCall("/rate_limit"),  # the only call that does not count
        other_variables=("GH_TOKEN",),
        base_url_variables=("GITHUB_API_URL",),
    ),
    Preset(
        "huggingface",
        "HF_TOKEN",
        "https://huggingface.co",
        CheckCall("/api/whoami-v2"),
        aliases=("hf",),
        base_url_variables=("HF_ENDPOINT",),
    ),
    Preset("bedrock", "AWS_BEARER_TOKEN_BEDROCK"),
    Preset("perplexity", "PERPLEXITY_API_KEY"),
)

_BY_NAME = {name: preset for preset in PRESETS for name in (preset.name, *preset.aliases)}
# Names and aliases of all presets.
PROVIDER_NAMES = tuple(_BY_NAME)


def preset_of(provider: str | None) -> Preset | None:
    """Return the preset with this name or alias, in upper or lower case; None if there is none."""
    return None if provider is None else _BY_NAME.get(provider.lower())


def preset_of_variable(variable: str) -> Preset | None:
    """Return the preset whose variable is the longest prefix of a name (`OPENAI_API_KEY_2`: openai); None if there is
    none."""
    best: tuple[int, Preset | None] = (0, None)
    for preset in PRESETS:
        for prefix in (preset.variable, *preset.other_variables):
            if variable.startswith(prefix) and len(prefix) > best[0]:
                best = len(prefix), preset
    return best[1]


def base_url_of(preset: Preset, environ: Mapping[str, str]) -> str | None:
    """Return the base URL that the preset's SDK would use in this environment; None if there is none."""
    base_url = next((environ[name] for name in preset.base_url_variables if environ.get(name)), preset.base_url)
    return None if base_url is None else base_url.rstrip("/")
