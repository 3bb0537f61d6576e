"""The commands that put credentials back into use, after a run stopped because none was usable."""

from __future__ import annotations

import shlex

from agentos.home.run_folder import RunSpec
from agentos.pool.store import MEMORY
from agentos.reporters.unusable_text import NO_USABLE, ids_to_enable

# Credentials that get a command each; more of them are enabled by one command.
MAX_COMMANDS = 3


def enabling_commands(stopped: str | None, spec: RunSpec | None) -> list[str]:
    """Return what to type before the run is resumed; an empty list if it did not stop for lack of a usable
    credential. The options of the run name its keys and its store."""
    if stopped is None or not stopped.startswith(NO_USABLE):
        return []
    options = {} if spec is None else spec.options
    chosen = "".join(
        f" --{name.replace('_', '-')} {shlex.quote(str(options[name]))}"
        for name in ("keys", "key_env", "store")
        if options.get(name) not in (None, MEMORY)
    )
    keys_options = chosen.partition(" --store ")[0]
    ids = ids_to_enable(stopped)
    commands = [f"agentos keys check{keys_options}"]
    if len(ids) > MAX_COMMANDS:
        return [*commands, f"agentos keys reset{chosen}"]
    return [*commands, *(f"agentos keys enable {shlex.quote(id_)}{chosen}" for id_ in ids)]
