"""The README and the pages of the library, the errors and the design agree with the code. (`test_pages` runs them.)"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.acceptance import errors_reference, state_diagrams

ROOT = Path(__file__).parents[2]


def test_first_readme_example_runs_unchanged(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1].startswith("3 [")
    assert "sk-one" not in done.stdout


def test_readme_fits_on_two_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_ledger_examples_run_in_order(tmp_path: Path) -> None:
    section = (ROOT / "docs" / "library.md").read_text().partition("## Nothing lost")[2].partition("## Full")[0]
    run, look = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    program = f"""
from agentos.workflows.parallel import CredentialCoordinator, ParallelCoordinator
pool = CredentialCoordinator(["sk-one-secret", "sk-two-secret"])
documents = [{{"id": "a"}}, {{"id": "b", "is_bad": True}}]
def review(document, key):
    if "is_bad" in document:
        raise ValueError("bad")
{run}
{look}
"""
    script = tmp_path / "example.py"
    script.write_text(program)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
        )
        assert "Counts(succeeded=1, failed=1, unfinished=0)\nb bad ['failed', 'failed']\nkey-" in done.stdout
    assert "Resuming run main (launch 2); on record: 1 succeeded, 1 failed, 0 started but not finished" in done.stdout


def test_library_page_lists_every_coordinator_option() -> None:
    import inspect

    from agentos.workflows.parallel import ParallelCoordinator

    library = (ROOT / "docs" / "library.md").read_text()
    options = set(inspect.signature(ParallelCoordinator).parameters) - {"credential_coordinator", "clock"}
    assert not [name for name in options if f"| `{name}` |" not in library]


def test_design_names_every_package_and_module_of_floor_0() -> None:
    design = (ROOT / "docs" / "design.md").read_text()
    entries = [path for path in (ROOT / "src" / "agentos").iterdir() if not path.name.startswith("_")]
    packages = [path.name for path in entries if (path / "__init__.py").exists()]
    modules = [path.stem for path in entries if path.suffix == ".py"]
    assert not [name for name in packages if not re.search(rf"^\| `{name}\b", design, re.MULTILINE)]
    assert not [name for name in modules if f"`{name}`" not in design]


def test_design_draws_the_state_machines_of_the_code() -> None:
    design = (ROOT / "docs" / "design.md").read_text()
    assert design == state_diagrams.page(design), "run `make docs`"


def test_errors_page_lists_the_exceptions_of_the_code() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    assert page == errors_reference.page(page), "run `make docs`"
