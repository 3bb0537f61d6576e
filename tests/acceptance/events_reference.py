"""Generate `docs/events.md` from `agentos.events`: `python -m tests.acceptance.events_reference docs/events.md`."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tokenize
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any

from agentos import events
from agentos.items import parallelism, results

HEAD = f"""# Events

`agentos run --json` prints one JSON object per line; `JsonReporter()` does the same for a program. Every line has
`event` (the name of the event) and `v` (the version of this schema, now {events.JSON_VERSION}), then the fields below.
A program should ignore events and fields that it does not know: additions do not raise the version; a renamed or
removed event or field does.

Durations are seconds, instants are seconds since 1970. Secrets are replaced by `****`.

This page is generated from `agentos/events.py` by `make docs`.
"""
# Types as JSON has them.
TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "true or false",
    "None": "null",
    "list[str]": "list of strings",
    "tuple[str, ...]": "list of strings",
    "dict[str, Any]": "object",
    "Any": "any value",
    "ParallelBound": "[`ParallelBound`](#the-object-parallelbound)",
    "PoolWaiting": "[`PoolWaiting`](#poolwaiting) without `event` and `v`",
}
# The objects of the two fields that `agentos.events` declares as Any, and the object in one of them.
RESULTS: dict[str, Any] = {
    "WorkflowResult": results.WorkflowResult,
    "ProgressStats": results.ProgressStats,
    "ParallelBound": parallelism.ParallelBound,
}


def page() -> str:
    """Return the whole page."""
    source = inspect.getsource(events)
    comments = _comments(source)
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    sections = [HEAD, *(_section(node, comments, f"## {node.name}") for node in classes)]
    for name, cls in RESULTS.items():
        text = inspect.getsource(inspect.getmodule(cls))  # type: ignore[arg-type]
        tree = next(n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == name)
        names = set(cls._fields) if hasattr(cls, "_fields") else {field.name for field in fields(cls)}
        assert names <= {n.target.id for n in tree.body if _is_field(n)}  # type: ignore[attr-defined]
        sections.append(_section(tree, _comments(text), f"## The object {name}"))
    return "\n".join(sections)


def _comments(source: str) -> dict[int, str]:
    """Return the comment that ends each line, by line number."""
    tokens = tokenize.generate_tokens(StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


def _is_field(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


def _section(node: ast.ClassDef, comments: dict[int, str], title: str) -> str:
    described = " ".join((ast.get_docstring(node) or "").split())
    lines = [title, "", described, "", "| field | type | meaning |", "|---|---|---|"]
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            comment = re.sub(r"\bNone\b", "null", comments.get(field.lineno, ""))
            comment = re.sub(r"\bFalse\b", "false", comment)
            kind = ast.unparse(field.annotation)
            if comment in RESULTS:
                kind, comment = f"[`{comment}`](#the-object-{comment.lower()})", ""
            else:
                kind = " or ".join(TYPES.get(part, part) for part in kind.split(" | "))
            lines.append(f"| `{field.target.id}` | {kind} | {comment} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
