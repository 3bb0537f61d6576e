"""Spells why a run has no usable credential: a line that counts the states, then a line for each credential.

The text is the message of `NoUsableCredential` and the reason for which a run stopped, which the ledger keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from agentos.events import DISABLED

from .format import escape_controls

NO_USABLE = "no usable credential"
_QUARANTINED = "quarantined: "
# Prefix of the reason for a credential that is for other models.
_OTHER_SCOPE = "does not serve scope "
# Credentials that are listed one by one.
MAX_LISTED = 20


def one_line(text: str | None) -> str:
    """Return the first line of a text, escaped. It is not cut: the text may still have to be redacted."""
    lines = (text or "").strip().splitlines()
    return escape_controls(lines[0]) if lines else ""


def out_of_use_text(reason: str) -> str:
    """Return the state of a credential that is out of use, and why: `disabled: …` or `quarantined: …`."""
    return one_line(reason if reason.startswith(DISABLED) else _QUARANTINED + reason)


def unusable_text(reasons: Mapping[str, str], empty: str = "the pool is empty") -> str:
    """Return why none of these credentials can be used, from the reason of each by id."""
    states = {id_: _state_text(reason) for id_, reason in reasons.items()}
    return listed_text(states) if states else f"{NO_USABLE}: {empty}"


def listed_text(states: Mapping[str, str]) -> str:
    """Return the lines for credentials whose states, such as `disabled: by hand`, are given by id."""
    counts = Counter(text.partition(": ")[0] for text in states.values())
    lines = [f"{NO_USABLE}: {', '.join(f'{count} {state}' for state, count in counts.items())}"]
    lines += [f"{escape_controls(id_)}: {text}" for id_, text in list(states.items())[:MAX_LISTED]]
    if len(states) > MAX_LISTED:
        lines.append(f"and {len(states) - MAX_LISTED} more")
    return "\n".join(lines)


def detail_lines(stopped: str | None) -> list[str]:
    """Return the lines after the first of the reason for which a run stopped: one for each credential."""
    return [one_line(line) for line in (stopped or "").splitlines()[1:]]


def ids_to_enable(stopped: str | None) -> list[str]:
    """Return the ids of the credentials that `agentos keys enable` puts back into use, in a run that stopped for lack
    of a usable credential."""
    if stopped is None or not stopped.startswith(NO_USABLE):
        return []
    pairs = (line.partition(": ") for line in stopped.splitlines()[1:])
    return [id_ for id_, _, text in pairs if text.startswith((DISABLED, _QUARANTINED))]


def _state_text(reason: str) -> str:
    return f"for other models: {one_line(reason)}" if reason.startswith(_OTHER_SCOPE) else out_of_use_text(reason)
