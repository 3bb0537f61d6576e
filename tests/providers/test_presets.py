"""Presets of providers."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agentos.limits.reset_times import seconds_to_reset
from agentos.providers.presets import PRESETS, Preset, base_url_of, preset_of, preset_of_variable
from agentos.workflows.parallel import Limits


def test_preset_names_and_variables_are_unique() -> None:
    names = [name for preset in PRESETS for name in (preset.name, *preset.aliases)]
    variables = [name for preset in PRESETS for name in (preset.variable, *preset.other_variables)]
    assert len(set(names)) == len(names)
    assert len(set(variables)) == len(variables)
    assert names == [name.lower() for name in names]


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_check_call_sends_key_in_header_over_https(preset: Preset) -> None:
    if preset.base_url is not None:
        assert urlsplit(preset.base_url).scheme == "https"
        assert not preset.base_url.endswith("/")
    if preset.check is not None:
        assert preset.check.path.startswith("/")
        assert preset.check.key_header
        assert "key=" not in preset.check.path


@pytest.mark.parametrize("preset", [preset for preset in PRESETS if preset.day_resets], ids=lambda preset: preset.name)
def test_day_resets_of_presets_are_valid(preset: Preset) -> None:
    assert preset.day_resets is not None
    Limits(day_resets=preset.day_resets)
    assert 0 < seconds_to_reset(preset.day_resets, time.time()) <= 90_000


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("anthropic", "ANTHROPIC_API_KEY"),
        ("openai", "OPENAI_API_KEY"),
        ("gemini", "GEMINI_API_KEY"),
        ("google", "GEMINI_API_KEY"),
        ("mistral", "MISTRAL_API_KEY"),
        ("groq", "GROQ_API_KEY"),
        ("cohere", "CO_API_KEY"),
        ("deepseek", "DEEPSEEK_API_KEY"),
        ("OpenRouter", "OPENROUTER_API_KEY"),
        ("xai", "XAI_API_KEY"),
        ("together", "TOGETHER_API_KEY"),
        ("fireworks", "FIREWORKS_API_KEY"),
    ],
)
def test_preset_of_name_or_alias(name: str, variable: str) -> None:
    preset = preset_of(name)
    assert preset is not None
    assert preset.variable == variable


def test_unknown_provider_has_no_preset() -> None:
    assert preset_of("our-own-gateway") is None
    assert preset_of(None) is None


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("OPENAI_API_KEY", "openai"),
        ("OPENAI_API_KEY_2", "openai"),
        ("AZURE_OPENAI_API_KEY_WEST", "azure"),
        ("GOOGLE_API_KEY", "gemini"),
        ("COHERE_API_KEY", "cohere"),
        ("MY_OPENAI_API_KEY", None),
    ],
)
def test_preset_of_variable_uses_longest_prefix(variable: str, name: str | None) -> None:
    preset = preset_of_variable(variable)
    assert (None if preset is None else preset.name) == name


def test_base_url_follows_variables_of_sdk() -> None:
    openai = preset_of("openai")
    assert openai is not None
    assert base_url_of(openai, {}) == "https://api.openai.com/v1"
    assert base_url_of(openai, {"OPENAI_BASE_URL": ""}) == "https://api.openai.com/v1"
    assert base_url_of(openai, {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1/"}) == "http://127.0.0.1:1/v1"
    azure = preset_of("azure")
    assert azure is not None
    assert base_url_of(azure, {}) is None


def test_documentation_lists_every_preset() -> None:
    table = (Path(__file__).parents[2] / "docs" / "keys.md").read_text()
    for preset in PRESETS:
        row = next(line for line in table.splitlines() if line.startswith(f"| `{preset.name}`"))
        names = [preset.variable, *preset.aliases, *preset.other_variables, preset.day_resets or ""]
        assert all(name in row for name in names)
        assert ("GET" in row) == (preset.check is not None)
