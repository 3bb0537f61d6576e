"""What is known about providers: the variable that their tools read, when their days begin, and a call that costs
nothing and tells whether a key is accepted.

Plain data. A keys file overrides it with a `[provider.NAME]` table. Nothing here is about limits: those depend on the
account, and what is not declared is learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CheckCall:
    """A GET request. The key is in a header, never in the address: addresses are logged on the way."""

    path: str  # after the base URL
    key_header: str = "Authorization"
    key_prefix: str = "Bearer "
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    variable: str  # in which the provider's own tools look for the key
    base_url: str | None = None  # as the provider's SDK spells it: some end in a version, some do not
    check: CheckCall | None = None
    aliases: tuple[str, ...] = ()
    other_variables: tuple[str, ...] = ()  # in which keys are also kept
    base_url_variables: tuple[str, ...] = ()  # that its SDK reads too; the first that is set holds
    day_resets: str | None = None  # when the provider's day begins, where that is known and not midnight UTC


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
    # Its address belongs to the resource, so there is a check only where one is given.
    Preset(
        "azure",
        "AZURE_OPENAI_API_KEY",
        None,
        CheckCall("/openai/models?api-version=2024-10-21", "api-key", ""),
        aliases=("azure-openai",),
        base_url_variables=("AZURE_OPENAI_ENDPOINT",),
    ),
    Preset("mistral", "MISTRAL_API_KEY", "https://api.mistral.ai/v1", _MODELS, aliases=("mistralai",)),
    # The SDK's base URL has no /openai/v1, but everybody else's has.
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
    # Its list of models is shown to everybody, so it would say nothing about a key.
    Preset("openrouter", "OPENROUTER_API_KEY", "https://openrouter.ai/api/v1", CheckCall("/key")),
    Preset("xai", "XAI_API_KEY", "https://api.x.ai/v1", _MODELS, aliases=("grok",)),
    Preset("together", "TOGETHER_API_KEY", "https://api.together.xyz/v1", _MODELS, aliases=("togetherai",)),
    Preset("fireworks", "FIREWORKS_API_KEY", "https://api.fireworks.ai/inference/v1", _MODELS),
    Preset("cerebras", "CEREBRAS_API_KEY", "https://api.cerebras.ai/v1", _MODELS),
    Preset(
        "github",
        "GITHUB_TOKEN",
        "https://api.github.com",
        CheckCall("/rate_limit"),  # the one call that is not counted
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


def preset_of(provider: str | None) -> Preset | None:
    """By its name or another that it goes by, in any case of letters."""
    return None if provider is None else _BY_NAME.get(provider.lower())


def preset_of_variable(variable: str) -> Preset | None:
    """Whose variable a name begins with: `OPENAI_API_KEY_2` is OpenAI's. The longest beginning counts."""
    found: tuple[int, Preset | None] = (0, None)
    for preset in PRESETS:
        for known in (preset.variable, *preset.other_variables):
            if variable.startswith(known) and len(known) > found[0]:
                found = len(known), preset
    return found[1]


def base_url_of(preset: Preset, environ: Mapping[str, str]) -> str | None:
    """Where the preset's calls go: to what its SDK would be told by the environment, else to the provider itself."""
    told = next((environ[name] for name in preset.base_url_variables if environ.get(name)), preset.base_url)
    return None if told is None else told.rstrip("/")
