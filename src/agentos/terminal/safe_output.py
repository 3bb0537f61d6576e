"""Makes output of items safe to show: on a terminal only colours and line controls take effect.

What an item prints is not trusted. Control sequences could set the title, write to the clipboard (OSC 52), move the
cursor over lines of other items, or reorder text (bidirectional controls). They are shown as escapes; log files and
pipes get the bytes as they were printed.
"""

from __future__ import annotations

import re

# Anything but plain ASCII text with tabs, newlines and carriage returns.
_SUSPICIOUS = re.compile(rb"[^\t\n\r -~]")
# Group 1 passes: colours (SGR) and erasing in the line. The rest: C0 and C1 controls, also as single bytes (which
# `surrogateescape` turns into U+DC80 to U+DC9F), and bidirectional controls.
_CONTROLS = re.compile(
    "(\x1b\\[[0-9;:]*m|\x1b\\[[0-2]?K)"
    "|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\udc80-\udc9f]"
)


def safe_output(data: bytes) -> bytes:
    """Return whole lines of output with all controls as escapes, except colours, tabs, and the ends of lines."""
    if _SUSPICIOUS.search(data) is None:
        return data
    return _CONTROLS.sub(_escape, data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _escape(match: re.Match[str]) -> str:
    if match[1] is not None:
        return match[1]
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDC9F:
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
