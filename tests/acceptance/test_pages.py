"""The documentation pages: code blocks run, links lead somewhere, and every page can be found from the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import ROOT, blocks_of, pages, reader

LANGUAGES = {"", "console", "mermaid", "python", "sh", "text", "toml", "json", "jsonl"}
# Pages whose blocks other tests run.
RUN_ELSEWHERE = {"docs/providers.md": "test_providers.py"}
HAS_CODE = [page for page in pages() if any(block.language in ("console", "sh", "python") for block in blocks_of(page))]
_LINK = re.compile(r"(?<!`)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")


@pytest.mark.parametrize("page", [page for page in HAS_CODE if page not in RUN_ELSEWHERE])
def test_code_blocks_of_page_run_in_order(page: str, tmp_path: Path) -> None:
    with reader(tmp_path) as person:
        for block in blocks_of(page):
            person.read(block)
        person.finish(page)


def test_every_block_has_a_known_language() -> None:
    blocks = [block for page in pages() for block in blocks_of(page)]
    assert not [block.place for block in blocks if block.language not in LANGUAGES]


def test_tests_named_as_reasons_exist() -> None:
    for block in [block for page in pages() for block in blocks_of(page) if block.mark.startswith("not run: ")]:
        reason = block.mark.removeprefix("not run: ")
        assert len(reason.split()) >= 3, block.place
        assert all((ROOT / "tests" / path).exists() for path in re.findall(r"\S+\.py", reason)), block.place
    assert all((ROOT / "tests" / "acceptance" / name).exists() for name in RUN_ELSEWHERE.values())


# --- links --------------------------------------------------------------------------------------------------------


def all_markdown() -> list[Path]:
    folders = [ROOT / name for name in ("docs", "examples", "tests", "benchmarks")]
    return [*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.md"))]


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(path: Path) -> set[str]:
    """Return the anchors that GitHub makes from the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", without_code(path.read_text()), re.MULTILINE):
        name = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", name).replace(" ", "-")
        number = 0
        while (anchor := name if not number else f"{name}-{number}") in found:
            number += 1
        found.add(anchor)
    return found


@pytest.mark.parametrize("path", all_markdown(), ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_and_anchors_exist(path: Path) -> None:
    for link in _LINK.findall(without_code(path.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


def test_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(index.read_text())}
    assert not [
        page for page in pages() if page.startswith("docs/") and (ROOT / page).resolve() not in linked | {index}
    ]
    assert "(docs/README.md)" in (ROOT / "README.md").read_text()
