"""`OutputPrefixer`: whole lines with a prefix, for all divisions into chunks and many threads."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.workflows.parallel import OutputPrefixer

PATIENCE = 30  # seconds until a thread that should have ended counts as stuck


class Recorder:
    """A stream that records its calls."""

    def __init__(self) -> None:
        self.writes: list[str] = []
        self.flushes = 0

    def write(self, text: str) -> int:
        self.writes.append(text)
        return len(text)

    def flush(self) -> None:
        self.flushes += 1

    @property
    def text(self) -> str:
        return "".join(self.writes)


class WriteOnly:
    """A stream without `flush`."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


class CharacterFile:
    """A stream that writes each character with a system call, which lets another thread run."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, text: str) -> int:
        for character in text:
            os.write(self._file, character.encode())
        return len(text)

    def close(self) -> None:
        os.close(self._file)


class UnhashableCharacterFile(CharacterFile):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other


class UnreferableCharacterFile:
    """A stream without weak references."""

    __slots__ = ("_inner",)

    def __init__(self, path: Path) -> None:
        self._inner = CharacterFile(path)

    def write(self, text: str) -> int:
        return self._inner.write(text)

    def close(self) -> None:
        self._inner.close()


@pytest.fixture
def eager_switching() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def in_threads(*jobs: Callable[[], None]) -> None:
    """Start all jobs at the same moment and wait for their end."""
    start = threading.Barrier(len(jobs))
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            start.wait(PATIENCE)
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


def prefixed(prefix: str, text: str) -> str:
    """Return the expected output: a prefix before each line that is not empty, and a newline at the end."""
    if text and not text.endswith("\n"):
        text += "\n"
    return re.sub(r"(?m)^(?=[^\n])", lambda _: f"{prefix} ", text)


# --- lines --------------------------------------------------------------------------------------------------------


def test_complete_line_gets_prefix_and_space() -> None:
    stream = Recorder()
    OutputPrefixer("[a]", stream).write("hello\n")
    assert stream.text == "[a] hello\n"


def test_each_line_of_one_write_gets_the_prefix() -> None:
    stream = Recorder()
    OutputPrefixer("[a]", stream).write("one\ntwo\nthree\n")
    assert stream.text == "[a] one\n[a] two\n[a] three\n"


def test_empty_lines_get_no_prefix() -> None:
    stream = Recorder()
    OutputPrefixer("[a]", stream).write("\none\n\n\ntwo\n\n")
    assert stream.text == "\n[a] one\n\n\n[a] two\n\n"


def test_line_of_spaces_gets_the_prefix() -> None:
    stream = Recorder()
    OutputPrefixer("[a]", stream).write("  \n")
    assert stream.text == "[a]   \n"


@pytest.mark.parametrize("separator", ["\r", "\v", "\f", "\x1c", "\x85", "\u2028"])
def test_only_a_newline_ends_a_line(separator) -> None:
    stream = Recorder()
    prefixer = OutputPrefixer("[a]", stream)
    prefixer.write(f"one{separator}two")
    assert stream.writes == []
    prefixer.write("\n")
    assert stream.text == f"[a] one{separator}two\n"


def test_partial_line_is_held_until_its_newline() -> None:
    stream = Recorder()
    prefixer = OutputPrefixer("[a]", stream)
    prefixer.write("hel")
    prefixer.write("lo")
    assert stream.writes == []
    prefixer.write("\n")
    assert stream.text == "[a] hello\n"


def test_text_after_the_last_newline_is_held() -> None:
    stream = Recorder()
    prefixer = OutputPrefixer("[a]", stream)
    prefixer.write("one\ntw")
    assert stream.text == "[a] one\n"
    prefixer.write("o\nthree")
    assert stream.text == "[a] one\n[a] two\n"


def test_newline_completes_a_held_line_or_is_empty() -> None:
    stream = Recorder()
    prefixer = OutputPrefixer("[a]", stream)
    prefixer.write("one")
    prefixer.write("\n")
    prefixer.write("\n")
    assert stream.text == "[a] one\n\n"


def test_print_writes_to_a_prefixer() -> None:
    stream = Recorder()
    prefixer = OutputPrefixer("[a]", stream)
    print("one", 2, file=prefixer)
    print(file=prefixer)
    assert stream.text == "[a] one 2\n\n"


def test_stream_receives_whole_lines_only() -> None:
    stream = Recorder()
    with OutputPrefixer("[a]", stream) as prefixer:
        for chunk in ("o", "ne\n", "\n", "two\nthr", "ee", "\nfour"):
            prefixer.write(chunk)
    assert all(text.endswith("\n") for text in stream.writes)
    assert stream.text == "[a] one\n\n[a] two\n[a] three\n[a] four\n"


@pytest.mark.parametrize("text", ["", "one", "one\n", "\n", "one\ntwo", "zwölf\n"])
def test_write_returns_the_length_of_its_text(text) -> None:
    prefixer = OutputPrefixer("a long prefix", Recorder())
    prefixer.write("held")
    assert prefixer.write(text) == len(text)


CHUNKS = st.lists(st.text(alphabet=["a", "b", " ", "\n", "\r", "ü"], max_size=6), max_size=12)


@given(chunks=CHUNKS)
def test_output_is_independent_of_chunks(chunks) -> None:
    at_once, in_pieces = Recorder(), Recorder()
    text = "".join(chunks)
    with OutputPrefixer("[a]", at_once) as prefixer:
        prefixer.write(text)
    with OutputPrefixer("[a]", in_pieces) as prefixer:
        lengths = [prefixer.write(chunk) for chunk in chunks]
    assert in_pieces.text == at_once.text == prefixed("[a]", text)
    assert sum(lengths) == len(text)


@given(chunks=CHUNKS)
def test_complete_lines_are_written_before_flush(chunks) -> None:
    stream = Recorder()
    prefixer = OutputPrefixer("[a]", stream)
    for chunk in chunks:
        prefixer.write(chunk)
    complete, newline, _ = "".join(chunks).rpartition("\n")
    assert stream.text == prefixed("[a]", complete + newline)


# --- flush and the end --------------------------------------------------------------------------------------------


def test_flush_writes_a_partial_line() -> None:
    stream = Recorder()
    prefixer = OutputPrefixer("[a]", stream)
    prefixer.write("one\nhalf")
    prefixer.flush()
    assert stream.text == "[a] one\n[a] half\n"
    prefixer.write("rest\n")
    assert stream.text == "[a] one\n[a] half\n[a] rest\n"


def test_second_flush_writes_nothing() -> None:
    stream = Recorder()
    prefixer = OutputPrefixer("[a]", stream)
    prefixer.flush()
    assert stream.writes == []
    prefixer.write("half")
    prefixer.flush()
    prefixer.flush()
    assert stream.writes == ["[a] half\n"]


def test_flush_flushes_the_stream_after_writing() -> None:
    written_at_flush = []
    stream = Recorder()
    stream.flush = lambda: written_at_flush.append(stream.text)  # type: ignore[method-assign]
    prefixer = OutputPrefixer("[a]", stream)
    prefixer.write("half")
    assert written_at_flush == []
    prefixer.flush()
    assert written_at_flush == ["[a] half\n"]


def test_stream_without_flush_is_supported() -> None:
    stream = WriteOnly()
    with OutputPrefixer("[a]", stream) as prefixer:
        prefixer.write("half")
        prefixer.flush()
    assert stream.text == "[a] half\n"


def test_with_block_flushes_at_its_end() -> None:
    stream = Recorder()
    with OutputPrefixer("[a]", stream) as prefixer:
        assert isinstance(prefixer, OutputPrefixer)
        prefixer.write("half")
        assert stream.writes == []
    assert stream.text == "[a] half\n"
    assert stream.flushes == 1


def test_exception_in_with_block_flushes_and_propagates() -> None:
    stream = Recorder()

    def fail() -> None:
        with OutputPrefixer("[a]", stream) as prefixer:
            prefixer.write("last words")
            raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        fail()
    assert stream.text == "[a] last words\n"


def test_failing_stream_raises_and_releases_its_lock() -> None:
    class Failing(Recorder):
        is_broken = True

        def write(self, text: str) -> int:
            if self.is_broken:
                raise BrokenPipeError("gone")
            return super().write(text)

    stream = Failing()
    first, second = OutputPrefixer("[a]", stream), OutputPrefixer("[b]", stream)
    with pytest.raises(BrokenPipeError):
        first.write("one\n")
    stream.is_broken = False
    in_threads(lambda: first.write("two\n") and None, lambda: second.write("three\n") and None)
    assert sorted(stream.writes) == ["[a] two\n", "[b] three\n"]


# --- sys.stdout ---------------------------------------------------------------------------------------------------


def test_lines_go_to_stdout_without_a_stream(capsys) -> None:
    with OutputPrefixer("[a]") as prefixer:
        prefixer.write("one\ntwo")
    assert capsys.readouterr().out == "[a] one\n[a] two\n"


def test_stdout_is_looked_up_at_each_write() -> None:
    prefixer = OutputPrefixer("[a]")
    first, second = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(first):
        prefixer.write("one\nbegun here,")
    with contextlib.redirect_stdout(second):
        prefixer.write(" ended there\n")
    assert first.getvalue() == "[a] one\n"
    assert second.getvalue() == "[a] begun here, ended there\n"


def test_given_stream_is_used_instead_of_stdout() -> None:
    stream, stdout = Recorder(), io.StringIO()
    with contextlib.redirect_stdout(stdout):
        OutputPrefixer("[a]", stream).write("one\n")
    assert stream.text == "[a] one\n"
    assert stdout.getvalue() == ""


# --- threads ------------------------------------------------------------------------------------------------------

THREADS, LINES = 8, 25


@pytest.mark.usefixtures("eager_switching")
@pytest.mark.parametrize("kind", [CharacterFile, UnhashableCharacterFile, UnreferableCharacterFile])
def test_prefixers_on_one_stream_never_mix_lines(tmp_path, kind) -> None:
    stream = kind(tmp_path / "out")

    def job(number: int) -> Callable[[], None]:
        def write_lines() -> None:
            with OutputPrefixer(f"[{number}]", stream) as prefixer:
                for line in range(LINES):
                    prefixer.write(f"line {line} ")
                    prefixer.write(f"of {number}\n")

        return write_lines

    in_threads(*(job(number) for number in range(THREADS)))
    stream.close()
    lines = (tmp_path / "out").read_text().splitlines()
    for number in range(THREADS):
        prefixer_lines = [line for line in lines if line.startswith(f"[{number}]")]
        assert prefixer_lines == [f"[{number}] line {line} of {number}" for line in range(LINES)]
    assert len(lines) == THREADS * LINES


@pytest.mark.usefixtures("eager_switching")
def test_threads_on_one_prefixer_never_mix_lines(tmp_path) -> None:
    stream = CharacterFile(tmp_path / "out")
    prefixer = OutputPrefixer("[shared]", stream)

    def job(number: int) -> Callable[[], None]:
        def write_lines() -> None:
            for line in range(LINES):
                prefixer.write(f"line {line} of {number}\n")

        return write_lines

    in_threads(*(job(number) for number in range(THREADS)))
    stream.close()
    lines = (tmp_path / "out").read_text().splitlines()
    assert sorted(lines) == sorted(
        f"[shared] line {line} of {number}" for number in range(THREADS) for line in range(LINES)
    )


class MeetingPoint:
    """A stream in which two threads wait for each other: when its lock is looked up, and when it is written to."""

    def __init__(self) -> None:
        self.looked_up = threading.Barrier(2)
        self.written_to = threading.Barrier(2)
        self.met_while_writing = False
        self.lines: list[str] = []

    def __hash__(self) -> int:
        self._meet(self.looked_up)
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other

    def write(self, text: str) -> None:
        self.met_while_writing |= self._meet(self.written_to)
        self.lines.append(text)

    def _meet(self, barrier: threading.Barrier) -> bool:
        try:
            barrier.wait(0.1)
        except threading.BrokenBarrierError:  # only one thread came; later calls return at once
            return False
        return True


def test_two_threads_get_the_same_lock_for_a_new_stream() -> None:
    stream = MeetingPoint()
    in_threads(*(lambda name=name: OutputPrefixer(name, stream).write("one\n") and None for name in ("[a]", "[b]")))
    assert sorted(stream.lines) == ["[a] one\n", "[b] one\n"]
    assert not stream.met_while_writing


class SlowText(str):
    """A text that lets another thread run while it is appended."""

    __slots__ = ()

    def __radd__(self, partial_line: str) -> str:
        Path(os.devnull).stat()
        return partial_line + str(self)


@pytest.mark.usefixtures("eager_switching")
def test_pieces_from_many_threads_are_written_once() -> None:
    stream = Recorder()
    with OutputPrefixer("[#]", stream) as prefixer:

        def job(letter: str) -> Callable[[], None]:
            def write_pieces() -> None:
                for number in range(LINES):
                    prefixer.write(SlowText(letter if number % 5 else f"{letter}\n"))

            return write_pieces

        in_threads(*(job(letter) for letter in "abcdefgh"))
    assert {letter: stream.text.count(letter) for letter in "abcdefgh"} == dict.fromkeys("abcdefgh", LINES)


@pytest.mark.usefixtures("eager_switching")
def test_concurrent_flushes_write_each_held_line_once(tmp_path) -> None:
    stream = CharacterFile(tmp_path / "out")
    prefixer = OutputPrefixer("[a]", stream)
    for number in range(LINES):
        prefixer.write(f"half {number}")
        in_threads(*[prefixer.flush] * 4)
    stream.close()
    assert (tmp_path / "out").read_text().splitlines() == [f"[a] half {number}" for number in range(LINES)]


def test_blocked_stream_does_not_delay_another_stream() -> None:
    is_writing, may_go_on = threading.Event(), threading.Event()

    class Blocking(Recorder):
        def write(self, text: str) -> int:
            is_writing.set()
            assert may_go_on.wait(PATIENCE)
            return super().write(text)

    slow, fast = Blocking(), Recorder()
    thread = threading.Thread(target=OutputPrefixer("[slow]", slow).write, args=("one\n",), daemon=True)
    thread.start()
    assert is_writing.wait(PATIENCE)
    in_threads(lambda: OutputPrefixer("[fast]", fast).write("two\n") and None)
    assert fast.text == "[fast] two\n"
    assert slow.text == ""
    may_go_on.set()
    thread.join(PATIENCE)
    assert slow.text == "[slow] one\n"


def test_prefixer_keeps_no_reference_to_its_stream() -> None:
    stream = Recorder()
    OutputPrefixer("[a]", stream).write("one\n")
    reference = weakref.ref(stream)
    del stream
    gc.collect()
    assert reference() is None


def test_prefixer_can_replace_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    with contextlib.redirect_stdout(OutputPrefixer("[a]")):  # type: ignore[type-var]
        print("x")
    assert capfd.readouterr().out in ("[a] x\n", "")  # the real stdout may be captured elsewhere


def test_print_from_many_threads_keeps_lines_whole() -> None:
    stream = io.StringIO()
    prefixer = OutputPrefixer("[a]", stream)
    barrier = threading.Barrier(8, timeout=60)

    def print_lines(number: int) -> None:
        barrier.wait()
        for _ in range(50):
            print("x" * number, "y" * number, file=prefixer)  # type: ignore[arg-type]

    threads = [threading.Thread(target=print_lines, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 400
    assert {line.count("x") == line.count("y") for line in lines} == {True}
