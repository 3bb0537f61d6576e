"""Runs `agentos` in a pseudo-terminal of a fixed size and records a frame of its live display."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import pexpect

from tests.acceptance.terminal import Emulator

from .machine import PATIENCE, machine, prefixed

# A frame is drawn while the terminal does not wrap lines.
_FRAME = re.compile(rb"\x1b\[\?7l(.*?)\x1b\[\?7h", re.DOTALL)


@dataclass(frozen=True)
class ScreenCase:
    """Names a run in a terminal: the frame that has all the patterns is recorded; then the file `go` appears."""

    name: str
    command: str
    patterns: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    columns: int = 80
    rows: int = 24


def frame_and_end(case: ScreenCase) -> str:
    """Run a case and return the frame, with its terminal codes, and the terminal's content after its end."""
    with machine(case.files, case.environ) as fresh:
        child = pexpect.spawn(
            "/bin/sh",
            ["-c", f"exec {case.command}"],
            cwd=str(fresh.work),
            env=fresh.environ,
            dimensions=(case.rows, case.columns),
            echo=False,
        )
        child.delayafterclose = child.delayafterterminate = 0.01
        try:
            frame = fresh.shown(_until(child, output := bytearray(), case.patterns)) + "\n"
            (fresh.work / "go").touch()
            _until(child, output, None)
            child.wait()
        finally:
            child.close(force=True)
        emulator = Emulator(case.columns, case.rows)
        emulator.feed(bytes(output))
        end = fresh.shown("".join(f"{line}\n" for line in emulator.lines()).encode())
    return f"$ {case.command}\n{prefixed('frame', frame)}\n{prefixed('end', end)}status: {child.exitstatus}\n"


def _until(child: pexpect.spawn[bytes], output: bytearray, patterns: tuple[str, ...] | None) -> bytes:
    """Read until there is a frame with all the patterns and return it; without patterns, read to the end."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with suppress(pexpect.TIMEOUT):
            try:
                output += child.read_nonblocking(65536, timeout=0.1)
            except pexpect.EOF:
                if patterns is None:
                    return b""
                break
        frames = _FRAME.findall(bytes(output)) if patterns is not None else []
        if frames and all(re.search(pattern.encode(), frames[-1]) for pattern in patterns or ()):
            return frames[-1]
    raise AssertionError(f"no frame with {patterns}: {shlex.quote(output.decode(errors='replace')[-3000:])}")
