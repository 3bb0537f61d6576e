"""Run each recipe of docs/providers.md unchanged, against the simulated provider."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.testing import SimulatedProvider
from tests.providers.sdk_clients import load

PAGE = (Path(__file__).parents[2] / "docs" / "providers.md").read_text()
BEGINNING, *SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
KEYS = {"KEY_A": "sk-the-first-team's-key", "KEY_B": "sk-the-second-team's-key"}
# Recipes, and the import names of their SDKs.
INSTALLED = {
    "openai": "openai",
    "anthropic": "anthropic",
    "google-genai": "google.genai",
    "litellm": "litellm",
    "httpx": "httpx",
    "requests": "requests",
    "aiohttp": "aiohttp",
}
NOT_INSTALLED = ["groq", "mistralai", "cohere", "botocore"]


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def recipe(name: str) -> str:
    (section,) = [section for section in SECTIONS if section.partition("\n")[0].partition(" ")[0] == name]
    return "\n".join([*blocks(BEGINNING), *blocks(section)])


@pytest.fixture
def sim(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedProvider]:
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)
    with SimulatedProvider(KEYS.values(), limits=[], latency=0.0) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.base_url}/v1")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", provider.base_url)
        yield provider


@pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class .* is using the `ReadOnly` qualifier:UserWarning")
@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
@pytest.mark.parametrize("name", INSTALLED)
def test_recipe_runs_unchanged_and_survives_a_limit(
    name: str, sim: SimulatedProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    load(INSTALLED[name])
    code = re.sub(r"https://(?:\w+\.)?api\.openai\.com", sim.base_url, recipe(name))
    sim.script([429], key=KEYS["KEY_A"], retry_after=0.01)
    program: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, f"recipe for {name}", "exec"), program)
    for name_of_client in {"client", "session"} & program.keys():  # a program closes it at its exit
        program[name_of_client].close()
    out = capsys.readouterr().out
    answers = [line for line in out.splitlines() if line.strip() == "A simulated answer."]
    assert len(answers) == code.count("print(") == sim.answered
    assert sim.limited == 1
    assert not any(key in out for key in KEYS.values())
    if "settle(" in code:
        assert sum(state.tokens for state in program["pool"].states()) > 0


@pytest.mark.parametrize("name", NOT_INSTALLED)
def test_recipes_for_other_sdks_compile(name: str) -> None:
    compile(recipe(name), f"recipe for {name}", "exec")


def test_every_recipe_and_sdk_is_listed() -> None:
    with_code = [section.partition("\n")[0].partition(" ")[0] for section in SECTIONS if blocks(section)]
    assert sorted(with_code) == sorted([*INSTALLED, *NOT_INSTALLED])
    table = "\n".join(line for line in BEGINNING.splitlines() if line.startswith("|"))
    assert not [name for name in with_code if name not in table]
