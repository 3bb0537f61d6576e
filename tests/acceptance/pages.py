"""Read and run the code blocks of the documentation.

The blocks of a page run in their order, in one folder. An HTML comment in the line before a block changes that:

- `<!-- file: NAME -->`: the block is the content of a file that later blocks use.
- `<!-- program -->`: the Python block is a program of its own; the other Python blocks of a page are one program, which
  runs after all other blocks.
- `<!-- server -->`: the command serves until the end of the page.
- `<!-- exit: N -->`: the exit status of the last command.
- `<!-- killed after: N lines -->`: the command is killed when it has written this number of lines to stdout.
- `<!-- not run: REASON -->`: the block is not run.

TOML is loaded as a keys file. Each line below a command in a `console` block must be in its output, but for figures;
`…` stands for any text.
Nothing leaves the machine: base URLs point to the simulated provider, and agents are programs that send one request.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentos.keys.keys_file import load_keys
from agentos.testing import SimulatedProvider
from tests.conftest import eventually
from tests.support.programs import PATIENCE, run_program

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"^(?: *<!-- (?P<mark>[^\n]*?) -->\n)?(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_GENERATED = re.compile(r"<!-- made by `make docs`.*?<!-- end of what is made -->", re.DOTALL)
_MARKS = ("file: ", "program", "server", "exit: ", "killed after: ", "not run: ")
KEYS = {
    name: f"sk-{name.lower().replace('_', '-')}-0123456789"
    for name in (
        "TEAM_A_KEY",
        "TEAM_B_KEY",
        "NIGHT_KEY",
        "KEY_A",
        "KEY_B",
        "OPENAI_API_KEY",
        "OPENAI_API_KEY_1",
        "OPENAI_API_KEY_2",
    )
}
# Ports that pages name; each is replaced by a free one.
PORTS = ("8899", "8787")
AGENT = """#!{python}
import json, os, sys, urllib.request
prompt = sys.argv[-1]
body = {{"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{{"role": "user", "content": prompt}}]}}
if os.environ.get("ANTHROPIC_API_KEY"):
    url, headers = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", {{"x-api-key": os.environ["ANTHROPIC_API_KEY"]}}
    headers["anthropic-version"] = "2023-06-01"
else:
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    headers = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}
headers["content-type"] = "application/json"
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as response:
    json.load(response)
print("did:", prompt)
"""
KEYS_FILE = "".join(
    f'[[credential]]\nid = "team-{team}"\nsecret = "env:TEAM_{team.upper()}_KEY"\nprovider = "anthropic"\n'
    f"requests_per_minute = 600\ntokens_per_minute = 100000\nmax_concurrent = 4\n"
    for team in "ab"
)
FILES = {
    "keys.toml": KEYS_FILE,
    "issues.jsonl": '{"id": 1, "title": "the roof"}\n{"id": 2, "title": "the door"}\n',
    "docs.jsonl": '{"id": "a", "path": "a.md"}\n',
    "documents.jsonl": '{"id": "a"}\n{"id": "b"}\n',
    "workers.py": "def review(item, key):\n    return f'{item} reviewed'\n",
}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    mark: str
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return the paths of all documentation pages, relative to the repository."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in found]


def blocks_of(page: str) -> list[Block]:
    """Return the code blocks of a page, without those that `make docs` generates from the help of commands."""
    text = (ROOT / page).read_text()
    text = _GENERATED.sub(lambda match: "\n" * match[0].count("\n"), text)
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        mark = match["mark"] or ""
        mark = mark if mark.startswith(_MARKS) else ""
        found.append(Block(page, line, mark, match["language"], textwrap.dedent(match["text"])))
    return found


def free_port() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return str(bound.getsockname()[1])


class Reader:
    """Does what a page says, in a folder with the files and programs that pages mention."""

    def __init__(self, folder: Path, provider: SimulatedProvider) -> None:
        self.folder = folder / "work"
        programs = folder / "programs"
        for path in (self.folder, programs, folder / "home"):
            path.mkdir()
        for name in ("claude", "codex", "gemini"):
            (programs / name).write_text(AGENT.format(python=sys.executable))
            (programs / name).chmod(0o755)
        for name, text in FILES.items():
            (self.folder / name).write_text(text)
        self.provider = provider
        self.ports = {port: free_port() for port in PORTS}
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AGENTOS_", "OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_", "TEAM_"))
        }
        self.environ = {
            **inherited,
            **KEYS,
            "PATH": f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder / "home"),
            "AGENTOS_HOME": str(folder / "home" / ".agentos"),
            "OPENAI_BASE_URL": f"{provider.base_url}/v1",
            "ANTHROPIC_BASE_URL": provider.base_url,
            "GOOGLE_GEMINI_BASE_URL": provider.base_url,
        }
        self.exports = ""  # lines of earlier blocks that set variables
        self.program = ""  # the Python blocks so far
        self.servers: list[subprocess.Popen[str]] = []

    def read(self, block: Block) -> None:
        """Do what a block says. Raise `AssertionError` if it does not work as the page says."""
        text = block.text
        for port, free in self.ports.items():
            text = text.replace(port, free)
        kind, _, detail = block.mark.partition(": ")
        if kind == "not run":
            return
        if block.language == "toml":
            self._load_keys(text, block)
        if kind == "file":
            path = self.folder / detail
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o600)
        elif kind == "server":
            self._serve(text.removeprefix("$ ").splitlines()[0], block)
        elif kind == "killed after":
            self._kill(text.removeprefix("$ "), int(detail.removesuffix(" lines")))
        elif block.language == "python":
            self._python(text, block, is_program=kind == "program")
        elif block.language in ("console", "sh"):
            self._console(text, block, int(detail or 0) if kind == "exit" else 0)

    def _load_keys(self, text: str, block: Block) -> None:
        """Load a keys file, or a part of one. An error names the line."""
        if "[[credential]]" not in text:
            text += '\n[[credential]]\nsecret = "env:TEAM_A_KEY"\n'
        path = self.folder / "block.toml"
        path.write_text(text)
        assert load_keys(path).credentials, block.place

    def _python(self, text: str, block: Block, *, is_program: bool) -> None:
        text = re.sub(r"https://(?:\w+\.)?api\.openai\.com", self.provider.base_url, text)
        if is_program:
            self._run_python(text, block)
        else:
            self.program += f"\n{text}"

    def finish(self, page: str) -> None:
        """Run the Python blocks of the page as one program."""
        if self.program:
            self._run_python(self.program, Block(page, 0, "", "python", self.program))

    def _run_python(self, text: str, block: Block) -> None:
        (self.folder / "program.py").write_text(text)
        self._shell("python program.py", block, 0)

    def _console(self, text: str, block: Block, status: int) -> None:
        commands = list(commands_in(text)) if block.language == "console" else [(text, [])]
        for number, (command, expected) in enumerate(commands, start=1):
            output = self._shell(command, block, status if number == len(commands) else 0)
            shown = [without_figures(line) for line in output.splitlines()]
            missing = [line for line in expected if not any(map(pattern_of(line).fullmatch, shown))]
            assert not missing, (block.place, missing, output)
            self.exports += "".join(f"{line}\n" for line in command.splitlines() if line.startswith("export "))

    def _shell(self, script: str, block: Block, status: int) -> str:
        done = run_program(["bash", "-c", self.exports + script], self.folder, self.environ)
        output = done.stdout + done.stderr
        assert done.returncode == status, (block.place, script, done.returncode, output)
        assert not any(key in output for key in KEYS.values()), block.place
        return output

    def _kill(self, command: str, lines: int) -> None:
        with subprocess.Popen(
            ["bash", "-c", f"{self.exports}exec {command}"],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as program:
            assert program.stdout is not None
            for _ in range(lines):
                assert program.stdout.readline()
            program.kill()

    def _serve(self, command: str, block: Block) -> None:
        output = self.folder / f"server-{len(self.servers)}.txt"
        with output.open("w") as file:
            server = subprocess.Popen(
                ["bash", "-c", f"{self.exports}exec {command}"],
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                text=True,
            )
        self.servers.append(server)
        eventually(lambda: "http://127.0.0.1" in output.read_text() or server.poll() is not None, PATIENCE)
        assert server.poll() is None, (block.place, output.read_text())

    def leave(self) -> None:
        for server in self.servers:
            server.send_signal(signal.SIGINT)
            if server.stdin is not None:
                server.stdin.close()
            server.wait(PATIENCE)


@contextmanager
def reader(folder: Path) -> Iterator[Reader]:
    with SimulatedProvider(KEYS.values(), limits=[], latency=0.0) as provider:
        person = Reader(folder, provider)
        try:
            yield person
        finally:
            person.leave()


def commands_in(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a console block with the lines of output below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.rstrip("\n").split("\n")
        length = 1
        while lines[length - 1].endswith("\\"):
            length += 1
        yield "\n".join(lines[:length]), [line for line in lines[length:] if line.strip()]


def pattern_of(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part.strip()) for part in without_figures(line).split("…")))


def without_figures(line: str) -> str:
    """Return a line with its figures, and the times and ids made of them, replaced by N."""
    line = re.sub(r"\b\d{8}-\d{6}-[0-9a-f]{4,6}\b", "RUN", line)
    line = re.sub(r"\d[\d.,:]*(?: (?:ms|s|min|minutes|hours))?\b", "N", line)
    return re.sub(r"\s+", " ", line).strip()
