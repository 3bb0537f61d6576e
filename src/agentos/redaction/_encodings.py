"""The forms of a secret: the ways in which programs write it down."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from urllib.parse import quote

# What does not escape everything leaves different characters as they are: Python's `quote` and JavaScript's
# `encodeURIComponent` and `encodeURI`.
_SAFE_IN_URLS = ("", "/", "!'()*", ";,/?:@&=+$!*'()#")
# Nothing escapes these by default, and most forms of most keys consist of them.
_NEVER_ESCAPED = re.compile(r"[\w.-]*", re.ASCII)
_URL_SAFE_BASE64 = str.maketrans("+/", "-_")
# What is given a backslash: everything but letters, digits and _; what `shlex` finds unsafe; what bash's `printf %q`
# does; what is special between double quotes; and what is in strings of many languages.
_BACKSLASHED = (
    r"[^\w]",
    r"[^\w@%+=:,./-]",
    r"[\s'\"\\|&;()<>!{}*\[\]?^$`,]",
    r"[\"$`\\]",
    r"[\"$`\\!]",
    r"[\"'\\]",
)
_APOSTROPHES = ("'", "&#x27;", "&#39;", "&apos;")
_QUOTATION_MARKS = ('"', "&quot;", "&#34;", "&#x22;")
_SHELL_NAMES = {code: f"\\{code:03o}" for code in (*range(32), 127)} | {
    ord(character): "\\" + name for character, name in zip("\a\b\t\n\v\f\r\x1b'\\", "abtnvfrE'\\", strict=True)
}


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def forms_of(secret: str) -> set[bytes]:
    """All of them, and each of them once more as it looks inside a JSON text."""
    raw = encoded(secret)
    forms = {raw.hex(), raw.hex().upper()}
    for text in (secret, *_base64_parts(raw)):
        forms.add(text)
        forms.update(_url_escaped(text))
    forms.update(
        _json_escaped_otherwise(secret),
        _html_escaped(secret),
        _shell_escaped(secret, raw),
        _python_escaped(secret, raw),
        _escaped_throughout(secret, raw),
    )
    return {encoded(form) for text in forms for form in (text, *json_escaped(text))}


def _base64_parts(raw: bytes) -> Iterator[str]:
    """What must stand in base64 text if these bytes stand anywhere in the data: a character is 6 bits, and those at
    either end that have bits of something else too are left out."""
    for before in range(3):
        text = base64.b64encode(bytes(before) + raw).decode()
        part = text[(8 * before + 5) // 6 : 8 * (before + len(raw)) // 6]
        yield part
        yield part.translate(_URL_SAFE_BASE64)


def _url_escaped(text: str) -> Iterator[str]:
    if _NEVER_ESCAPED.fullmatch(text):
        return
    for safe in _SAFE_IN_URLS:
        escaped = quote(encoded(text), safe)
        for form in (escaped, escaped.replace("%20", "+")):
            yield form
            yield re.sub("%..", lambda found: found[0].lower(), form)


def json_escaped(text: str) -> Iterator[str]:
    if _NEVER_ESCAPED.fullmatch(text):
        return
    for ensure_ascii in (True, False):
        escaped = json.dumps(text, ensure_ascii=ensure_ascii)[1:-1]
        yield escaped
        yield escaped.replace("/", "\\/")


def _json_escaped_otherwise(secret: str) -> Iterator[str]:
    """By encoders that also escape what is special in HTML, or write numbers in capitals."""
    for escaped in json_escaped(secret):
        for form in (escaped, re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", escaped)):
            yield form
            yield re.sub(r"(?<=\\u)[0-9a-f]{4}", lambda found: found[0].upper(), form)


def _html_escaped(secret: str) -> Iterator[str]:
    escaped = html.escape(secret, quote=False)
    for apostrophe in _APOSTROPHES:
        for mark in _QUOTATION_MARKS:
            form = escaped.replace("'", apostrophe).replace('"', mark)
            yield form
            yield form.encode("ascii", "xmlcharrefreplace").decode()
    for special in ("[&<>\"']", "[^a-zA-Z0-9]"):
        for number in ("&#{};", "&#x{:x};", "&#x{:X};"):
            yield re.sub(special, lambda found, number=number: number.format(ord(found[0])), secret)


def _shell_escaped(secret: str, raw: bytes) -> Iterator[str]:
    yield secret.replace("'", "'\"'\"'")
    yield secret.replace("'", "'\\''")
    for special in _BACKSLASHED:
        yield re.sub(special, r"\\\g<0>", secret, flags=re.ASCII)
    # Between $' and '. Whether bash shows characters beyond ASCII depends on its locale.
    yield "".join(_SHELL_NAMES.get(code) or (chr(code) if code < 128 else f"\\{code:03o}") for code in raw)
    yield secret.translate(_SHELL_NAMES)


def _python_escaped(secret: str, raw: bytes) -> Iterator[str]:
    # The quotation mark before it has Python choose apostrophes around it, and so escape those inside: whether it does
    # otherwise depends on what else stands in the string.
    for shown in (repr('"' + secret)[2:-1], ascii('"' + secret)[2:-1], repr(b'"' + raw)[3:-1]):
        yield shown
        yield shown.replace("\\'", "'")


def _escaped_throughout(secret: str, raw: bytes) -> Iterator[str]:
    """Where not even letters are left as they are."""
    units = memoryview(secret.encode("utf-16", "surrogatepass")).cast("H")[1:]
    yield "".join(f"\\{byte:03o}" for byte in raw)
    yield "".join(f"&#{ord(character)};" for character in secret)
    for digits in ("x", "X"):
        yield "".join(f"%{byte:02{digits}}" for byte in raw)
        yield "".join(f"\\x{byte:02{digits}}" for byte in raw)
        yield "".join(f"\\u{unit:04{digits}}" for unit in units)
        yield "".join(f"&#x{ord(character):{digits}};" for character in secret)
