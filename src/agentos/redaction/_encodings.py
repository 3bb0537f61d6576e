"""Lists the forms of a secret: every way in which programs commonly write it."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from urllib.parse import quote

# Characters that URL encoders leave unescaped: everything escaped, Python's `quote`, JavaScript's `encodeURIComponent`
# and `encodeURI`.
_SAFE_IN_URLS = ("", "/", "!'()*", ";,/?:@&=+$!*'()#")
# Characters that no encoder escapes by default. Most forms of most keys consist of these alone.
_NEVER_ESCAPED = re.compile(r"[\w.-]*", re.ASCII)
_URL_SAFE_BASE64 = str.maketrans("+/", "-_")
# Sets of characters that get a backslash: everything but letters, digits and _; what `shlex` finds unsafe; what bash's
# `printf %q` escapes; what is special between double quotes (two variants); string literals of many languages.
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


def to_bytes(text: str) -> bytes:
    """Return the text as UTF-8; lone surrogates, which UTF-8 forbids, are encoded like other characters."""
    return text.encode("utf-8", "surrogatepass")


def forms_of(secret: str) -> set[bytes]:
    """Return all forms of the secret, and each of them once more as it looks inside a JSON text."""
    raw = to_bytes(secret)
    forms = {raw.hex(), raw.hex().upper()}
    for text in (secret, *_base64_forms(raw)):
        forms.add(text)
        forms.update(_url_forms(text))
    forms.update(
        _json_variants(secret),
        _html_forms(secret),
        _shell_forms(secret, raw),
        _python_forms(secret, raw),
        _full_escapes(secret, raw),
    )
    return {to_bytes(form) for text in forms for form in (text, *json_forms(text))}


def _base64_forms(raw: bytes) -> Iterator[str]:
    """Yield the base64 characters that depend on the secret alone, for each of the three alignments in the data.

    A base64 character holds 6 bits. Those at either end that also hold bits of a neighbouring byte are left out.
    """
    for before in range(3):
        text = base64.b64encode(bytes(before) + raw).decode()
        part = text[(8 * before + 5) // 6 : 8 * (before + len(raw)) // 6]
        yield part
        yield part.translate(_URL_SAFE_BASE64)


def _url_forms(text: str) -> Iterator[str]:
    if _NEVER_ESCAPED.fullmatch(text):
        return
    for safe in _SAFE_IN_URLS:
        escaped = quote(to_bytes(text), safe)
        for form in (escaped, escaped.replace("%20", "+")):
            yield form
            yield re.sub("%..", lambda match: match[0].lower(), form)


def json_forms(text: str) -> Iterator[str]:
    """Yield the text as it looks inside a JSON string, if any character of it may be escaped there."""
    if _NEVER_ESCAPED.fullmatch(text):
        return
    for ensure_ascii in (True, False):
        escaped = json.dumps(text, ensure_ascii=ensure_ascii)[1:-1]
        yield escaped
        yield escaped.replace("/", "\\/")


def _json_variants(secret: str) -> Iterator[str]:
    """Yield the forms of JSON encoders that also escape HTML characters, or write hexadecimal digits in capitals."""
    for escaped in json_forms(secret):
        for form in (escaped, re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", escaped)):
            yield form
            yield re.sub(r"(?<=\\u)[0-9a-f]{4}", lambda match: match[0].upper(), form)


def _html_forms(secret: str) -> Iterator[str]:
    escaped = html.escape(secret, quote=False)
    for apostrophe in _APOSTROPHES:
        for mark in _QUOTATION_MARKS:
            form = escaped.replace("'", apostrophe).replace('"', mark)
            yield form
            yield form.encode("ascii", "xmlcharrefreplace").decode()
    for special in ("[&<>\"']", "[^a-zA-Z0-9]"):
        for reference in ("&#{};", "&#x{:x};", "&#x{:X};"):
            yield re.sub(special, lambda match, reference=reference: reference.format(ord(match[0])), secret)


def _shell_forms(secret: str, raw: bytes) -> Iterator[str]:
    yield secret.replace("'", "'\"'\"'")
    yield secret.replace("'", "'\\''")
    for special in _BACKSLASHED:
        yield re.sub(special, r"\\\g<0>", secret, flags=re.ASCII)
    # Between $' and '. It depends on the locale whether bash escapes characters beyond ASCII.
    yield "".join(_SHELL_NAMES.get(code) or (chr(code) if code < 128 else f"\\{code:03o}") for code in raw)
    yield secret.translate(_SHELL_NAMES)


def _python_forms(secret: str, raw: bytes) -> Iterator[str]:
    # With a quotation mark in front, `repr` chooses apostrophes as delimiters and escapes apostrophes inside. Without
    # it, that would depend on the other characters of the string.
    for literal in (repr('"' + secret)[2:-1], ascii('"' + secret)[2:-1], repr(b'"' + raw)[3:-1]):
        yield literal
        yield literal.replace("\\'", "'")


def _full_escapes(secret: str, raw: bytes) -> Iterator[str]:
    """Yield forms in which every character is escaped, letters included."""
    units = memoryview(secret.encode("utf-16", "surrogatepass")).cast("H")[1:]
    yield "".join(f"\\{byte:03o}" for byte in raw)
    yield "".join(f"&#{ord(character)};" for character in secret)
    for digits in ("x", "X"):
        yield "".join(f"%{byte:02{digits}}" for byte in raw)
        yield "".join(f"\\x{byte:02{digits}}" for byte in raw)
        yield "".join(f"\\u{unit:04{digits}}" for unit in units)
        yield "".join(f"&#x{ord(character):{digits}};" for character in secret)
