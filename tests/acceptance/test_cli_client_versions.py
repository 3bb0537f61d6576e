"""A run with a gateway warns of an agent whose installed version is known to fail behind one."""

from __future__ import annotations

from pathlib import Path

import pytest

from .program import Sandbox


@pytest.mark.parametrize(("version", "is_warned"), [("2.1.266", True), ("2.1.326", False)])
def test_run_warns_of_a_failing_version(tmp_path: Path, version: str, is_warned: bool) -> None:
    sandbox = Sandbox(tmp_path)
    executable = tmp_path / "versions" / version
    executable.parent.mkdir()
    executable.write_text("#!/bin/sh\necho answered\n")
    executable.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "claude").symlink_to(executable)
    sandbox.environ["PATH"] = f"{tmp_path / 'bin'}:{sandbox.environ['PATH']}"
    sandbox.write("keys.toml", '[[credential]]\nsecret = "sk-key-of-a-test"\nprovider = "anthropic"\n', mode=0o600)
    ended = sandbox.agentos("run", "--gateway", "--keys", "keys.toml", "--item", "a", "--", "claude", "-p", "x")
    assert ended.returncode == 0, ended.stderr
    assert ("Warning: claude 2.1.266 fails behind a gateway" in ended.stderr) is is_warned
