"""The program's stdout and stderr: on a pseudo-terminal, on pipes, closed, and on a full disk."""

from __future__ import annotations

import fcntl
import inspect
import io
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentos.terminal import screen as _screen
from agentos.terminal.screen import Screen

from ..conftest import eventually
from .terminal import Terminal

ENVIRON = {"TERM": "xterm"}
NEVER = 3600.0  # between two ticks: the tests call `tick` themselves
PATIENCE = 60

Frame = Callable[[int, int], list[str]]


def screen_on(terminal: Terminal, **options: Any) -> Screen:
    stream: Any = terminal.stream
    return Screen(stream, stream, **{"environ": ENVIRON, "tick_seconds": NEVER, **options})


def box(width: int, height: int) -> list[str]:
    """Return a frame that fills its size."""
    return [f"{number}:".ljust(width, "=")[:width] for number in range(height)]


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal(40, 12) as made:
        yield made


# --- lines and the region -----------------------------------------------------------------------------------------


def test_lines_scroll_above_the_region_until_stop(terminal: Terminal) -> None:
    with screen_on(terminal) as screen:
        screen.write_output(b"one\n")
        assert screen.start(lambda width, height: ["region 1", "region 2"])
        screen.write_output(b"two\n")
        screen.message("three")
        screen.write_output(b"four\n", "stderr")
        screen.tick()
        assert terminal.update().lines() == ["one", "two", "three", "four", "region 1", "region 2"]
        assert not terminal.emulator.is_cursor_visible
    assert terminal.update().lines() == ["one", "two", "three", "four", ""]
    assert terminal.emulator.is_cursor_visible
    screen.write_output(b"five\n")
    assert terminal.update().lines() == ["one", "two", "three", "four", "five", ""]


def test_line_after_a_pause_is_shown_at_once(terminal: Terminal) -> None:
    with screen_on(terminal, tick_seconds=NEVER) as screen:
        screen.start(lambda width, height: ["region"])
        screen._drawn_at -= NEVER
        screen.write_output(b"at once\n")
        assert terminal.update().lines() == ["at once", "region"]
        screen.write_output(b"soon\n")
        assert terminal.update().lines() == ["at once", "region"]
        screen.tick()
        assert terminal.update().lines() == ["at once", "soon", "region"]


def test_stop_flushes_the_last_lines(terminal: Terminal) -> None:
    with screen_on(terminal) as screen:
        screen.start(lambda width, height: ["region"])
        for number in range(3):
            screen.write_output(b"%d\n" % number)
    assert terminal.update().lines() == ["0", "1", "2", ""]


def test_unchanged_region_is_not_redrawn(terminal: Terminal) -> None:
    frames = iter([["a"], ["a"], ["b"], ["b"]])
    with screen_on(terminal) as screen:
        screen.start(lambda width, height: next(frames))
        drawn = [terminal.update().drawn]
        for _ in range(3):
            screen.tick()
            drawn.append(terminal.update().drawn)
    assert drawn == [1, 1, 2, 2]


def test_flood_of_lines_does_not_redraw_per_line(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_screen, "MAX_HELD", 10_000)
    line = b"x" * 99 + b"\n"
    with screen_on(terminal) as screen:
        screen.start(lambda width, height: ["region"])
        for _ in range(1000):
            screen.write_output(line)
        assert screen.flush(PATIENCE)
        screen.tick()
        assert screen.flush(PATIENCE)
        assert len(terminal.update().lines()) == 1001
    assert terminal.emulator.drawn <= 2 + 1000 * len(line) // 10_000


def test_lines_of_many_threads_stay_whole_and_ordered() -> None:
    writers, lines = 6, 150
    with Terminal(50, 20) as terminal, screen_on(terminal, tick_seconds=0.002) as screen:
        numbers = itertools.count()
        screen.start(lambda width, height: [f"region {next(numbers)}"] * 4)

        def write(writer: int) -> None:
            for number in range(lines):
                screen.write_output(f"[{writer}] {number} {'-' * 60}\n".encode(), ("stdout", "stderr")[number % 2])

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        screen.stop()
        shown = terminal.update().lines()
        assert shown.pop() == ""
        assert len(shown) == writers * lines
        for writer in range(writers):
            expected = [f"[{writer}] {number} {'-' * 60}" for number in range(lines)]
            assert [line for line in shown if line.startswith(f"[{writer}]")] == expected


def test_invalid_utf8_is_written_unchanged(terminal: Terminal) -> None:
    with screen_on(terminal) as screen:
        screen.write_output(b"caf\xe9 \xff\n")
        assert terminal.update().lines() == ["caf\\xe9 \\xff", ""]


def test_controls_of_items_are_escaped_on_a_terminal_only(terminal: Terminal, tmp_path: Path) -> None:
    hostile = b"\x1b]52;c;aGk=\x07\x1b[31mred\x1b[0m\n"
    with screen_on(terminal) as screen:
        screen.write_output(hostile)
        terminal.wait_for(b"\\x1b]52;c;aGk=\\x07\x1b[31mred\x1b[0m")
    with (tmp_path / "file").open("w") as file:
        Screen(file, file, environ=ENVIRON).write_output(hostile)
    assert (tmp_path / "file").read_bytes() == hostile


def test_unfinished_line_is_ended_before_the_region(terminal: Terminal) -> None:
    with screen_on(terminal) as screen:
        screen.start(lambda width, height: ["region"])
        screen.write_output(b"half")
        screen.tick()
        assert terminal.update().lines() == ["half", "region"]


# --- sizes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "rows", "max_rows"), [(20, 5, 4), (100, 30, 15), (3, 2, 1), (1, 1, 0), (80, 10, 8)]
)
def test_region_leaves_room_for_lines(columns: int, rows: int, max_rows: int) -> None:
    with Terminal(columns, rows) as terminal, screen_on(terminal) as screen:
        sizes: list[tuple[int, int]] = []

        def frame(width: int, height: int) -> list[str]:
            sizes.append((width, height))
            return ["x" * width] * (height + 5)

        screen.start(frame)
        assert sizes == [(max(1, columns - 1), max_rows)]
        assert [line for line in terminal.update().lines() if line] == ["x" * (columns - 1)] * max_rows


def test_region_fills_the_terminal_if_stdout_is_redirected(terminal: Terminal) -> None:
    stream: Any = terminal.stream
    elsewhere: Any = io.TextIOWrapper(io.BytesIO())
    with Screen(elsewhere, stream, environ=ENVIRON, tick_seconds=NEVER) as screen:
        screen.start(box)
        assert len(terminal.update().lines()) == 11
        screen.write_output(b"out\n")
        assert elsewhere.buffer.getvalue() == b"out\n"


@pytest.mark.parametrize("reflows", [True, False], ids=["wraps anew", "cuts off"])
@settings(max_examples=25)
@given(
    steps=st.lists(
        st.one_of(st.tuples(st.integers(2, 90), st.integers(2, 40)), st.integers(0, 120)), min_size=1, max_size=8
    )
)
def test_resize_leaves_no_garbage(reflows: bool, steps: list[Any]) -> None:
    """Each step is a new size, or the length of a line."""
    with Terminal(60, 20, reflows=reflows) as terminal, screen_on(terminal) as screen:
        screen.start(box)
        expected: list[str] = []
        narrowest = 60
        for number, step in enumerate(steps):
            if isinstance(step, tuple):
                terminal.resize(*step)
                narrowest = min(narrowest, step[0])
            else:
                expected.append(f"{number} ".ljust(step, "-"))
                screen.write_output(expected[-1].encode() + b"\n")
            screen.tick()
            size = terminal.update()
            assume(not size.is_out_of_reach)
            region = box(max(1, size.columns - 1), max(min(size.height - 1, 8), size.height // 2))
            shown = size.lines()
            assert shown[len(shown) - len(region) :] == region
            above = shown[: len(shown) - len(region)]
            if reflows:
                assert above == [line.rstrip() for line in expected]
            else:  # rows were cut and wrapped lines split, but each is still there, in order
                starts = [line.rstrip() for line in above if not line.startswith("-")]
                cut_lines = [line[:narrowest].rstrip() for line in expected]
                assert [line[:narrowest].rstrip() for line in starts if line] == [line for line in cut_lines if line]


def test_line_right_after_a_resize_leaves_no_garbage() -> None:
    with Terminal(60, 20) as terminal, screen_on(terminal, tick_seconds=0.0) as screen:
        screen._run = lambda is_over: None  # type: ignore[method-assign]
        screen.start(box)
        terminal.resize(60, 6)
        screen.write_output(b"line\n")
        terminal.resize(90, 6)
        screen.tick()
        assert terminal.update().lines() == ["line", *box(89, 5)]


def test_too_wide_line_is_cut_at_its_end(terminal: Terminal) -> None:
    with screen_on(terminal) as screen:
        frames = iter([["wide " * 20, "second"], ["third"]])
        screen.start(lambda width, height: next(frames))
        assert terminal.update().lines()[1] == "second"
        assert len(terminal.emulator.lines()) == 2
        screen.tick()
        assert terminal.update().lines() == ["third"]


# --- where nothing is drawn ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {}])
def test_dumb_terminal_gets_no_region(terminal: Terminal, environ: dict[str, str]) -> None:
    with screen_on(terminal, environ=environ) as screen:
        assert not screen.start(box)
        screen.message("still here")
        assert terminal.update().lines() == ["still here", ""]
        assert terminal.emulator.is_cursor_visible


def test_redirected_stderr_gets_no_region() -> None:
    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    with Screen(out, err, environ=ENVIRON) as screen:
        assert not screen.can_be_live
        assert not screen.start(box)
        screen.write_output(b"line\n")
        screen.message("message")
    assert out.buffer.getvalue() == b"line\n"  # type: ignore[attr-defined]
    assert err.buffer.getvalue() == b"message\n"  # type: ignore[attr-defined]


def test_text_only_stream_is_accepted() -> None:
    out = io.StringIO()
    Screen(out, io.StringIO()).write_output(b"caf\xc3\xa9 \xff\n")
    assert out.getvalue() == "café \\xff\n"


def test_no_color_variable_disables_colour(terminal: Terminal) -> None:
    assert screen_on(terminal).has_color
    assert not screen_on(terminal, environ={**ENVIRON, "NO_COLOR": "1"}).has_color
    assert screen_on(terminal, environ={**ENVIRON, "NO_COLOR": ""}).has_color


def test_terminal_without_unicode_is_detected(terminal: Terminal) -> None:
    assert screen_on(terminal).has_unicode
    with open(terminal.slave, "w", encoding="latin-1", closefd=False) as latin:
        screen = Screen(latin, latin, environ=ENVIRON)
        assert not screen.has_unicode
        screen.message("café …")
    terminal.emulator._decode = lambda data: data.decode("latin-1")  # type: ignore[method-assign, assignment]
    assert terminal.update().lines() == ["café \\u2026", ""]


def test_background_job_writes_lines_without_region(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    with screen_on(terminal) as screen:
        monkeypatch.setattr(screen._stderr, "is_in_foreground", lambda: False)
        screen.start(lambda width, height: ["region"])
        screen.write_output(b"line\n")
        screen.tick()
        assert terminal.update().lines() == ["line", ""]
        assert terminal.emulator.is_cursor_visible
        monkeypatch.undo()
        screen.tick()
        assert terminal.update().lines() == ["line", "region"]


def test_only_display_imports_wcwidth() -> None:
    modules = "agentos.terminal.screen, agentos.terminal.lines"
    code = f"import {modules}, sys; print('wcwidth' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_failing_frame_is_reported_once_and_cursor_restored(terminal: Terminal) -> None:
    def frame(width: int, height: int) -> list[str]:
        raise ValueError("no frame")

    with screen_on(terminal) as screen:
        assert not screen.start(frame)
        screen.tick()
        message = "agentos: the live display failed and is switched off: ValueError('no frame')"
        assert terminal.update().lines() == [message, ""]
        assert terminal.emulator.is_cursor_visible


def test_text_stream_writes_whole_lines(terminal: Terminal) -> None:
    with screen_on(terminal) as screen:
        screen.start(lambda width, height: ["region"])
        stream = screen.text_stream("stderr")
        print("a", "b", file=stream, end="")
        screen.tick()
        assert terminal.update().lines() == ["region"]
        print("c\nd\n\ud800", file=stream, flush=True)
        screen.tick()
        assert terminal.update().lines() == ["a bc", "d", "\\ud800", "region"]


# --- streams that are gone ----------------------------------------------------------------------------------------


def python(code: str) -> list[str]:
    return [sys.executable, "-c", f"from agentos.terminal.screen import Screen\nimport os, sys\n{code}"]


def test_closed_pipe_does_not_end_the_program() -> None:
    code = """
screen = Screen()
for number in range(100_000):
    screen.write_output(b"line %d\\n" % number)
screen.flush(None)
print("printed by other code")
screen.message(f"done: {screen.lost}")
"""
    command = f"{shlex.join(python(code))} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout == "line 0\n0\n"
    lost = "agentos: stdout cannot be written any more: [Errno 32] Broken pipe"
    assert done.stderr == f"{lost}\ndone: {{'stdout': BrokenPipeError(32, 'Broken pipe')}}\n"


def test_program_without_stdout_still_writes_messages() -> None:
    code = """
opened = open(os.devnull, "w")  # gets the descriptor number of stdout
screen = Screen()
screen.write_output(b"line\\n")
screen.message(f"done: {list(screen.lost)} {opened.fileno()}")
"""
    command = f"{shlex.join(python(code))} >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stderr == "done: ['stdout'] 1\n"


def test_stdout_closed_meanwhile_is_dropped() -> None:
    out: Any = io.TextIOWrapper(io.BytesIO())
    err: Any = io.TextIOWrapper(io.BytesIO())
    screen = Screen(out, err)
    out.close()
    for _ in range(3):
        screen.write_output(b"line\n")
    message = err.buffer.getvalue().decode()
    assert message.startswith("agentos: stdout cannot be written any more: ")
    assert len(message.splitlines()) == 1
    assert list(screen.lost) == ["stdout"]


def test_full_disk_is_reported_once() -> None:
    code = """
screen = Screen()
for number in range(3):
    screen.write_output(b"line\\n")
"""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            python(code), stdout=full, stderr=subprocess.PIPE, text=True, check=True, timeout=PATIENCE
        )
    assert done.stderr == "agentos: stdout cannot be written any more: [Errno 28] No space left on device\n"


def test_full_pipe_does_not_delay_messages() -> None:
    reading, writing = os.pipe()
    out: Any = open(writing, "w")  # noqa: PTH123, SIM115
    err: Any = io.TextIOWrapper(io.BytesIO())
    screen = Screen(out, err)
    size = fcntl.fcntl(reading, fcntl.F_GETPIPE_SZ)
    screen.write_output(b"x" * size + b"y\n")
    assert _pending(reading) == size
    screen.message("heard")
    assert err.buffer.getvalue() == b"heard\n"
    assert not screen.flush(0.0)
    assert len(os.read(reading, size)) == size
    assert screen.flush(None)
    assert os.read(reading, size) == b"y\n"
    out.close()
    os.close(reading)


def test_later_output_never_overtakes_waiting_output() -> None:
    """Memory, then a file, then memory again: the order stays."""
    reading, writing = os.pipe()
    out: Any = open(writing, "w")  # noqa: PTH123, SIM115
    screen = Screen(out, io.StringIO())
    size = fcntl.fcntl(reading, fcntl.F_GETPIPE_SZ)
    expected, read = b"", b""
    for number in range(60):
        lines = b"%d\n" % number * 30_000
        screen.write_output(lines)
        expected += lines
        if number % 3 == 2:  # room for a newer piece, while older ones wait
            read += os.read(reading, size // 2)
    for number in range(300):  # the writer's thread and this one race for each page of room
        read += os.read(reading, 4096)
        screen.write_output(b"late %d\n" % number)
        expected += b"late %d\n" % number
    while len(read) < len(expected):
        read += os.read(reading, 1 << 20)
    assert screen.flush(PATIENCE)
    assert read == expected
    assert not screen.left_out
    out.close()
    os.close(reading)


def _pending(descriptor: int) -> int:
    import array
    import termios

    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]


def test_non_blocking_pipe_gets_all_output() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    out: Any = open(writing, "w")  # noqa: PTH123, SIM115
    screen = Screen(out, io.StringIO())
    data = b"0123456789" * 100_000
    screen.write_output(data + b"\n")
    read = b""
    while len(read) <= len(data):
        read += os.read(reading, 1 << 16)
    assert screen.flush(PATIENCE)
    assert read == data + b"\n"
    assert not screen.lost
    out.close()
    os.close(reading)


# --- the cursor ---------------------------------------------------------------------------------------------------

LIVE = """
import signal, threading
screen = Screen(environ={"TERM": "xterm"})
screen.start(lambda width, height: ["region"])
screen.message("live")
"""
ENDINGS = {
    "a way out without stop": "",
    "an exception": "raise ValueError('boom')",
    "exit": "sys.exit(3)",
    "Ctrl-C": "os.kill(os.getpid(), signal.SIGINT); threading.Event().wait()",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM); threading.Event().wait()",
    "SIGQUIT": "os.kill(os.getpid(), signal.SIGQUIT); threading.Event().wait()",
    "a stop": "screen.stop()",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_cursor_is_restored_at_every_kind_of_exit(terminal: Terminal, ending: str) -> None:
    program = subprocess.Popen(python(LIVE + ENDINGS[ending]), stdout=terminal.slave, stderr=terminal.slave)
    status = program.wait(PATIENCE)
    expected = {"SIGTERM": -signal.SIGTERM, "SIGQUIT": -signal.SIGQUIT, "exit": 3, "an exception": 1}
    assert status == expected.get(ending, -signal.SIGINT if ending == "Ctrl-C" else 0)
    shown = terminal.update()
    assert shown.is_cursor_visible
    assert "region" not in shown.lines()
    assert shown.wraps


def test_suspended_program_restores_the_cursor_and_redraws_later(terminal: Terminal) -> None:
    code = LIVE + "threading.Event().wait()"
    program = subprocess.Popen(python(code), stdout=terminal.slave, stderr=terminal.slave)
    try:
        terminal.wait_for(b"live")
        for _ in range(2):
            program.send_signal(signal.SIGTSTP)
            _pid, status = os.waitpid(program.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            shown = terminal.update()
            assert shown.is_cursor_visible
            assert shown.lines()[-1] == ""
            program.send_signal(signal.SIGCONT)
            terminal.wait_for(b"region")
        program.send_signal(signal.SIGTERM)
        assert program.wait(PATIENCE) == -signal.SIGTERM
        assert terminal.update().is_cursor_visible
    finally:
        program.kill()
        program.wait()


def test_stop_restores_signal_handlers(terminal: Terminal) -> None:
    signums = (signal.SIGTERM, signal.SIGQUIT, signal.SIGTSTP)
    for signum in signums:
        signal.signal(signum, signal.SIG_DFL)  # a run of another test may have left its handler
    before = [signal.getsignal(signum) for signum in signums]
    with screen_on(terminal) as screen:
        screen.start(box)
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(signum) for signum in signums] == before


# --- a terminal that is not ours ----------------------------------------------------------------------------------

IN_TMUX = """
import signal, threading
is_over = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: is_over.set())
screen = Screen()
screen.start(box)
for number in range(30):
    screen.write_output(b"line %d %s\\n" % (number, b"-" * 70))
is_over.wait()
screen.stop()
screen.message(f"stopped {os.getpid()}")
threading.Event().wait()
"""


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_tmux_resize_leaves_no_garbage(tmp_path: Path) -> None:
    server = ["tmux", "-S", str(tmp_path / "socket"), "-f", os.devnull]

    def tmux(*arguments: str) -> str:
        return subprocess.run([*server, *arguments], capture_output=True, text=True, check=True).stdout

    def shown() -> list[str]:
        """Return scrollback and screen, with wrapped lines joined."""
        return [line.rstrip() for line in tmux("capture-pane", "-p", "-J", "-S", "-").rstrip().split("\n")]

    def eventually_shown(expected: list[str]) -> None:
        try:
            eventually(lambda: shown() == expected)
        except AssertionError:
            assert shown() == expected

    lines = [f"line {number} {'-' * 70}" for number in range(30)]
    environ = [f"-e{name}={os.environ[name]}" for name in ("PYTHONPATH", "PATH") if name in os.environ]
    tmux("new-session", "-d", "-x", "80", "-y", "24", *environ, shlex.join(python(inspect.getsource(box) + IN_TMUX)))
    try:
        for columns, rows in ((80, 24), (40, 24), (40, 16), (120, 40), (60, 10), (80, 24)):
            tmux("resize-window", "-x", str(columns), "-y", str(rows))
            expected = lines + box(columns - 1, max(min(rows - 1, 8), rows // 2))
            eventually_shown(expected)
            assert tmux("display", "-p", "#{cursor_flag}").strip() == "0"
        os.kill(int(tmux("display", "-p", "#{pane_pid}")), signal.SIGUSR1)
        eventually(lambda: shown()[-1].startswith("stopped"))
        assert shown()[:-1] == lines
        assert tmux("display", "-p", "#{cursor_flag}").strip() == "1"
    finally:
        subprocess.run([*server, "kill-server"], check=False)
