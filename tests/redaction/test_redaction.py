"""`Redactor`: all forms of secrets are masked in texts, bytes and streams."""

from __future__ import annotations

import base64
import copy
import html
import itertools
import json
import pickle
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentos.redaction._finder import MAX_CODE_BYTES, Finder
from agentos.redaction.redactor import Redactor
from agentos.workflows.parallel import Credential, CredentialCoordinator

SECRET = "sk-Zq7Xw-canary-0123456789abcdef"
# For each sampling of the finder, and with the characters that encoders escape.
SECRETS = [
    SECRET,
    "hunter22",
    "AIzaSy-16-chars.",
    "p@ss w0rd/with+slash=",
    'it\'s "quoted" & <tagged> \\ $HOME `id`!',
    "schlüssel-日本-🔑-geheim",
    "tab\tand\nnewline\x07\x1f",
    "~/a,b;c|d*e?[f]{g}(h)#i^j%k:l",
    "\\u0041\\n%41&amp;'\"'",
]
CODES = [
    b"\x1b[0m",
    b"\x1b[38;2;255;10;3m",
    b"\x1b[K",
    b"\x1b[?25l",
    b"\x1b]0;a title\x07",
    b"\x1b]8;;https://example.com/a\x1b\\",
    b"\x1bPsome device string\x1b\\",
    b"\x1b(B",
    b"\x1b7",
    b"\x1bM",
]

Writer = Callable[[str], str]


def lower_escapes(text: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), text)


WRITERS: dict[str, Writer] = {
    "raw": str,
    "hex": lambda s: s.encode().hex(),
    "hex in capitals": lambda s: s.encode().hex().upper(),
    "base64": lambda s: base64.b64encode(s.encode()).decode().rstrip("="),
    "URL": quote,
    "URL, slash too": lambda s: quote(s, safe=""),
    "URL with lower-case digits": lambda s: lower_escapes(quote(s, safe="")),
    "URL of a form": quote_plus,
    "URL of a form with lower-case digits": lambda s: lower_escapes(quote_plus(s)),
    "URL of every byte": lambda s: "".join(f"%{byte:02X}" for byte in s.encode()),
    "JSON": lambda s: json.dumps(s)[1:-1],
    "JSON with all characters": lambda s: json.dumps(s, ensure_ascii=False)[1:-1],
    "JSON with escaped slashes": lambda s: json.dumps(s)[1:-1].replace("/", "\\/"),
    "JSON fit for HTML": lambda s: re.sub("[<>&]", lambda m: f"\\u{ord(m[0]):04x}", json.dumps(s)[1:-1]),
    "JSON in JSON": lambda s: json.dumps(json.dumps(s)[1:-1])[1:-1],
    "repr in JSON": lambda s: json.dumps(repr(s)[1:-1])[1:-1],
    "HTML": html.escape,
    "HTML text": lambda s: html.escape(s, quote=False),
    "HTML with decimal apostrophe": lambda s: html.escape(s).replace("&#x27;", "&#39;"),
    "HTML with named apostrophe": lambda s: html.escape(s).replace("&#x27;", "&apos;"),
    "HTML with numbers": lambda s: re.sub("[&<>\"']", lambda m: f"&#{ord(m[0])};", s),
    "HTML with hex numbers": lambda s: re.sub("[&<>\"']", lambda m: f"&#x{ord(m[0]):X};", s),
    "HTML in ASCII": lambda s: html.escape(s).encode("ascii", "xmlcharrefreplace").decode(),
    "HTML of every character": lambda s: "".join(f"&#{ord(c)};" for c in s),
    "shlex.quote": lambda s: shlex.quote(s + " ")[1:-2],
    "shell, closed and opened": lambda s: s.replace("'", "'\\''"),
    "shell, backslashes": lambda s: re.sub(r"(\W)", r"\\\1", s, flags=re.ASCII),
    "shell, fewer backslashes": lambda s: re.sub(r"([^\w@%+=:,./-])", r"\\\1", s, flags=re.ASCII),
    "backslashes before quotes": lambda s: re.sub(r"([\"'\\])", r"\\\1", s),
    "shell, double quotes": lambda s: re.sub(r"([\"$`\\])", r"\\\1", s),
    "repr": lambda s: repr(s)[1:-1],
    "repr with escaped apostrophes": lambda s: repr(s + "'\"")[1:-4],
    "ascii": lambda s: ascii(s)[1:-1],
    "repr of bytes": lambda s: repr(s.encode())[2:-1],
}


def in_chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


def redacted(redactor: Redactor, chunks: list[bytes]) -> bytes:
    stream = redactor.stream()
    return b"".join([stream.feed(chunk) for chunk in chunks]) + stream.flush()


# --- forms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("name", WRITERS)
def test_secret_is_masked_in_every_form(name: str, secret: str) -> None:
    written = WRITERS[name](secret).encode()
    redactor = Redactor([secret])
    for before, after in [(b"", b""), (b"key: ", b" refused\n"), (b"\xff\x1b", b"\x1b[0m\xff"), (b"key=", b"&x=1")]:
        clean = redactor.data(before + written + after)
        if name == "base64":
            assert re.fullmatch(re.escape(before) + rb"\*{4}.?" + re.escape(after), clean)
        else:
            assert clean == before + b"****" + after


@given(secret=st.text(min_size=8, max_size=40), name=st.sampled_from(sorted(set(WRITERS) - {"base64"})))
def test_any_text_can_be_a_secret(secret: str, name: str) -> None:
    try:
        written = WRITERS[name](secret)
    except UnicodeEncodeError:  # most encoders refuse lone surrogates
        return
    assert Redactor([secret]).text(f"<<{written}>>") == "<<****>>"


@given(before=st.binary(max_size=20), after=st.binary(max_size=20), secret=st.sampled_from(SECRETS), url=st.booleans())
@example(b"", b"", SECRETS[0], False)
@example(b"b", b"", SECRETS[0], False)
@example(b"be", b"", SECRETS[0], False)
def test_base64_of_secret_is_masked_at_every_alignment(before: bytes, after: bytes, secret: str, url: bool) -> None:
    encode = base64.urlsafe_b64encode if url else base64.b64encode
    text = encode(before + secret.encode() + after)
    first, end = -(-8 * len(before) // 6), 8 * (len(before) + len(secret.encode())) // 6
    assert Redactor([secret]).data(text) == text[:first] + b"****" + text[end:]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
@pytest.mark.parametrize("secret", [*SECRETS, "clé\tsecrète\x7f"])
def test_secret_is_masked_as_bash_prints_it(secret: str, locale: str) -> None:
    for script in ('printf %q "$1"', 'x=$1; echo "${x@Q}"', "x=$1; declare -p x", 'set -x; : "$1"'):
        bash = subprocess.run(
            ["bash", "-c", script, "bash", secret], env={"LC_ALL": locale}, capture_output=True, check=True
        )
        clean = Redactor([secret]).data(bash.stdout + bash.stderr)
        assert b"****" in clean, bash
        assert len(clean) < 30


def test_short_secret_stays_unless_asked_for() -> None:
    redactor = Redactor(["seven77", SECRET])
    assert redactor.too_short
    assert redactor.data(b"seven77 " + SECRET.encode()) == b"seven77 ****"
    assert redactor.text(f"seven77 {SECRET}") == "seven77 ****"
    assert redactor.text(f"seven77 {SECRET}", short_too=True) == "**** ****"
    assert not Redactor([SECRET]).too_short


def test_stream_without_secrets_holds_nothing_back() -> None:
    stream = Redactor([]).stream()
    assert stream.feed(b"text\x1b]0;") == b"text\x1b]0;"
    assert stream.flush() == b""
    assert Redactor([""]).text("text", short_too=True) == "text"


# --- several secrets ----------------------------------------------------------------------------------------------


def test_secret_with_another_as_prefix_is_masked_entirely() -> None:
    for secrets in ([SECRET, SECRET[:12]], [SECRET[:12], SECRET]):
        assert Redactor(secrets).text(f"Bearer {SECRET} refused, {SECRET[:12]}") == "Bearer **** refused, ****"


def test_overlapping_secrets_share_a_mask_adjacent_ones_do_not() -> None:
    redactor = Redactor(["abcdefghij", "ghijklmnop", "klmnopqrst"])
    assert redactor.text("-abcdefghijklmnop-") == "-****-"
    assert redactor.text("-abcdefghijklmnopqrst-") == "-****-"
    assert redactor.text("-abcdefghijabcdefghij-") == "-********-"
    for size in range(1, 12):
        chunks = [b"-abcdefghijklmnopqrstabcdefghij-"[at : at + size] for at in range(0, 32, size)]
        assert redacted(redactor, chunks) == b"-********-"


@given(
    forms=st.lists(st.text("ab", min_size=8, max_size=30).map(str.encode), min_size=1, max_size=5),
    shortest=st.sampled_from([8, 15, 23]),
    text=st.lists(st.text("ab", max_size=40).map(str.encode), max_size=4).map(b"c".join),
)
def test_finder_returns_all_spans_of_all_forms(forms: list[bytes], shortest: int, text: bytes) -> None:
    forms = [form for form in forms if len(form) >= shortest]
    text = text.join(forms[:2])
    places = {(at, at + len(form)) for form in forms for at in range(len(text)) if text.startswith(form, at)}
    finder = Finder(forms)
    assert set(finder.spans(text)) == places
    open_at = (
        at
        for at in range(len(text))
        if any(len(form) > len(text) - at and form.startswith(text[at:]) for form in forms)
    )
    assert finder.settle(text) == (finder.spans(text), next(open_at, len(text)))


@given(
    secrets=st.lists(st.text(alphabet="ab-", min_size=1, max_size=12), max_size=4),
    pieces=st.lists(st.text(alphabet="ab-c", max_size=6), max_size=6),
)
def test_no_secret_is_left_in_any_text(secrets: list[str], pieces: list[str]) -> None:
    text = "".join(itertools.chain.from_iterable(itertools.zip_longest(pieces, secrets, fillvalue="")))
    clean = Redactor(secrets).text(text, short_too=True)
    assert not [secret for secret in secrets if secret in clean]
    assert clean.count("c") == text.count("c")


def test_secret_inside_another_leaves_no_rest() -> None:
    assert Redactor(["before-inside-after", "inside-a"]).text("-before-inside-after-") == "-****-"


def test_form_of_any_length_is_found_at_any_position() -> None:
    for length in range(8, 32):
        form = bytes(range(65, 65 + length))
        for at in range(32):
            assert Finder([form]).spans(b"." * at + form + b"..") == [(at, at + length)]


# --- chunks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", SECRETS)
def test_secret_in_two_chunks_is_masked(secret: str) -> None:
    redactor = Redactor([secret])
    for write in (str, WRITERS["URL of every byte"], WRITERS["JSON"], WRITERS["hex"]):
        data = b"a " + write(secret).encode() + b" z"
        for cut in range(len(data)):
            assert redacted(redactor, [data[:cut], data[cut:]]) == b"a **** z"
        assert redacted(redactor, [data[at : at + 1] for at in range(len(data))]) == b"a **** z"


def test_stream_holds_back_both_of_two_overlapping_secrets() -> None:
    """The second secret begins inside the first."""
    both = "0123456789012345678901234567"
    redactor = Redactor([f"first-{both}-one", f"{both}-two"])
    for end, rest in ((b"-one", b"****"), (b"-two", b"first-****")):
        stream = redactor.stream()
        assert stream.feed(b"a first-" + both.encode()) == b"a "
        assert stream.feed(end) + stream.flush() == rest


def test_flush_masks_secret_that_begins_a_longer_one() -> None:
    redactor = Redactor(["abcdefghij", "abcdefghijklmnop"])
    assert redacted(redactor, [b"-abcdefghij"]) == b"-****"
    assert redacted(redactor, [b"-abcdefghij", b"kl"]) == b"-****kl"


PIECES = st.one_of(
    st.sampled_from([b"abababab", b"babababa", b"abababababababa", b"aab", b"sabababab", b"[\\u0061b"]),
    st.sampled_from([*CODES, b"\x1b[s", b"\x1b[", b"\x1b]", b"\x1b", b"\x1b\\", b"\x07", b"\x1bP", b";1m"]),
    st.text("ab", max_size=9).map(str.encode),
    st.binary(max_size=4),
)
OUTPUTS = st.lists(PIECES, max_size=12).map(b"".join)
CUTS = st.lists(st.integers(0, 200), max_size=12)


@given(
    secrets=st.lists(
        st.sampled_from(
            ["abababab", "ababababababab", "babababaabababab", "sabababab", "[abababab", "\\u0061babababababa"]
        ),
        min_size=1,
    ),
    data=OUTPUTS,
    cuts=CUTS,
)
@example(["sabababab"], b"\x1b[sabababab", [3])
@example(["sabababab"], b"ab\x1b[s\x1b[0mabababab", [5])
def test_output_is_independent_of_chunks(secrets: list[str], data: bytes, cuts: list[int]) -> None:
    redactor = Redactor(secrets)
    clean = redactor.data(data)
    assert redacted(redactor, in_chunks(data, cuts)) == clean
    assert redacted(redactor, [data[at : at + 1] for at in range(len(data))]) == clean
    assert not [secret for secret in secrets if secret.encode() in clean]


@given(data=OUTPUTS, cuts=CUTS, secret=st.sampled_from(["abababab", SECRET]))
def test_stream_holds_back_less_than_the_longest_form(data: bytes, cuts: list[int], secret: str) -> None:
    redactor = Redactor([secret])
    stream = redactor.stream()
    longest = max(map(len, redactor._finder._forms))
    for chunk in in_chunks(data, cuts):
        stream.feed(chunk)
        held = re.sub(rb"\x1b(\[[0-?]*[ -/]*[@-~]?|[\]P][^\x00-\x1f]*(\x07|\x1b\\?)?|[ -/]*[0-~]?)", b"", stream._tail)
        assert len(held) < longest


def test_stream_returns_text_that_cannot_become_a_secret() -> None:
    stream = Redactor([SECRET]).stream()
    assert stream.feed(b"a line\nand a half") == b"a line\nand a half"
    assert stream.feed(SECRET[:-1].encode()) == b""
    assert stream.feed(b"?") == SECRET[:-1].encode() + b"?"
    assert stream.feed(b"all but the last " + SECRET[:5].encode()) == b"all but the last "
    assert stream.flush() == SECRET[:5].encode()
    assert stream.flush() == b""


def test_stream_can_be_fed_after_flush() -> None:
    stream = Redactor([SECRET]).stream()
    half = SECRET[:9].encode()
    assert stream.feed(half) + stream.flush() + stream.feed(SECRET[9:].encode()) == SECRET.encode()
    assert stream.feed(SECRET.encode()) == b"****"


@given(data=st.binary(max_size=200), cuts=CUTS)
def test_output_without_secret_is_unchanged(data: bytes, cuts: list[int]) -> None:
    redactor = Redactor(SECRETS)
    assert redactor.data(data) is data
    assert redacted(redactor, in_chunks(data, cuts)) == data


# --- terminal codes -----------------------------------------------------------------------------------------------


@given(
    secret=st.sampled_from(SECRETS),
    name=st.sampled_from(sorted(set(WRITERS) - {"base64"})),
    codes=st.lists(st.lists(st.sampled_from(CODES), max_size=3).map(b"".join), min_size=1, max_size=20),
    cuts=CUTS,
)
@example(SECRETS[0], "raw", [CODES[0]], [])
def test_secret_across_terminal_codes_is_masked(secret: str, name: str, codes: list[bytes], cuts: list[int]) -> None:
    written = WRITERS[name](secret).encode()
    spread = b"".join(bytes([byte]) + code for byte, code in zip(written, itertools.cycle(codes), strict=False))
    data = b"\x1b[31mkey: " + spread + b"\x1b[0m.\n"
    clean = redacted(Redactor([secret]), in_chunks(data, cuts))
    # Codes between the characters are masked with them; those around them stay.
    assert clean == b"\x1b[31mkey: ****" + codes[(len(written) - 1) % len(codes)] + b"\x1b[0m.\n"


def test_secret_inside_terminal_code_is_masked() -> None:
    redactor = Redactor([SECRET])
    raw = SECRET.encode()
    assert redactor.data(b"\x1b]0;" + raw + b"\x07") == b"\x1b]0;****\x07"
    assert redactor.data(b"\x1b]8;;https://a/?key=" + raw + b"\x1b\\link") == b"\x1b]8;;https://a/?key=****\x1b\\link"
    for beginning in (b"\x1b", b"\x1b[", b"\x1b]", b"\x1b[1;"):
        for cut in range(len(beginning + raw)):
            data = beginning + raw
            assert redacted(redactor, [data[:cut], data[cut:]]) == beginning + b"****"


def test_unterminated_code_is_released() -> None:
    stream = Redactor([SECRET]).stream()
    assert stream.feed(b"a\x1b]0;title") == b"a"
    assert stream.feed(b"\n") == b"\x1b]0;title\n"
    assert stream.feed(b"\x1b]0;" + b"x" * 1000) == b""
    assert len(stream.feed(b"x" * MAX_CODE_BYTES)) == MAX_CODE_BYTES + 1004
    assert stream.feed(b"\x1b[" + b"1;" * 1000) == b"\x1b[" + b"1;" * 1000
    assert stream.feed(b"b\x1b[1") == b"b"
    assert stream.flush() == b"\x1b[1"


@pytest.mark.parametrize("size", [29, 1000, 4000, 5000])
@pytest.mark.parametrize("length", [4000, 4084, 4088, 4092, 4096, 4100, 9000])
def test_long_codes_are_redacted_independently_of_chunks(length: int, size: int) -> None:
    redactor = Redactor([SECRET])
    for inside in (
        b"\x1b]" + b"x" * length + b"\x1b\\",
        b"\x1b]" + b"x" * length + b"\x07",
        b"\x1b[0m" * (length // 4),
    ):
        data = SECRET[:9].encode() + inside + SECRET[9:].encode() + b" " + SECRET.encode()
        chunks = [data[at : at + size] for at in range(0, len(data), size)]
        assert redacted(redactor, chunks) == redactor.data(data)
        assert redactor.data(data) in (b"**** ****", data.replace(SECRET.encode(), b"****"))


def test_endless_codes_are_released() -> None:
    stream = Redactor([SECRET]).stream()
    released = stream.feed(SECRET[:9].encode())
    for _ in range(100):
        released += stream.feed(b"\x1b[0m" * 100)
    assert released == SECRET[:9].encode() + b"\x1b[0m" * 10_000


# --- texts --------------------------------------------------------------------------------------------------------


@given(st.text(st.characters(), max_size=60))
def test_text_without_secret_is_returned_unchanged(text: str) -> None:
    assert Redactor(SECRETS).text(text) is text


@given(before=st.text(st.characters(), max_size=9), secret=st.sampled_from(SECRETS))
def test_lone_surrogates_around_a_secret_stay(before: str, secret: str) -> None:
    before += "\udc80\ud83d"
    assert Redactor([secret]).text(f"{before}{secret}{before}") == f"{before}****{before}"


# --- no secret shows ----------------------------------------------------------------------------------------------


def test_redactor_is_not_copied_and_shows_no_secret() -> None:
    redactor = Redactor([SECRET])
    stream = redactor.stream()
    stream.feed(SECRET[:-1].encode())
    assert repr(redactor) == "<Redactor of 1 secrets>"
    assert repr(stream) == f"<RedactionStream: {len(SECRET) - 1} bytes held back>"
    for thing in (redactor, stream, redactor._finder):
        assert SECRET[:8] not in f"{thing!r}{thing}"
        for way in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError) as caught:
                way(thing)
            assert SECRET[:8] not in str(caught.value)


def test_error_for_wrong_argument_shows_no_secret() -> None:
    stream = Redactor([SECRET]).stream()
    stream.feed(SECRET[:-1].encode())
    with pytest.raises(TypeError) as caught:
        stream.feed("text")  # type: ignore[arg-type]
    assert SECRET[:8] not in str(caught.value)


# --- time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x1b]" * 100_000,
        (b"\x1b]" + b"x" * 4000 + b"\n") * 50,
        b"\x1b[1;1;1;1;1" * 18_000,
        b"\x1b[s" * 66_000,
        b"a" * 200_000,
        b"ab" * 100_000,
        SECRET[:-1].encode() * 6_000,
        SECRET.encode() * 6_000,
    ],
    ids=["strings", "long strings", "parameters", "codes", "letters", "pairs", "almost", "secrets"],
)
def test_worst_case_outputs_take_less_than_ten_seconds(data: bytes) -> None:
    redactor = Redactor([SECRET, "a" * 200, "ab" * 100, "aaaaaaaa", "s" * 100, "]" * 50])
    start = time.process_time()
    clean = redacted(redactor, [data[at : at + 4096] for at in range(0, len(data), 4096)])
    assert redactor.data(data) == clean
    assert time.process_time() - start < 10


# --- the pool's redactor ------------------------------------------------------------------------------------------


def test_pool_redacts_its_secrets_in_every_form() -> None:
    pool = CredentialCoordinator([SECRET])
    encoded = base64.b64encode(SECRET.encode()).decode().rstrip("=")
    assert pool.redact(f"{SECRET} is {encoded[:-1]}") == "**** is ****"
    assert pool.redact_value(quote(f"a b {SECRET}")) == "a%20b%20****"
    assert pool.hides_secret(SECRET.encode().hex())
    assert not pool.hides_secret(SECRET[:-1])
    assert pool.redactor().data(SECRET.encode()) == b"****"


def test_pool_redacts_short_secrets_in_messages_only() -> None:
    pool = CredentialCoordinator([Credential('k"1', id="short"), SECRET])
    assert pool.redactor().too_short
    assert pool.redact('k"1, k\\"1') == "****, ****"
    assert pool.redact_value('k"1') == 'k"1'
    assert not pool.hides_secret('k"1')


def test_added_credential_changes_the_redactor_of_the_pool() -> None:
    pool = CredentialCoordinator([SECRET])
    before = pool.redactor()
    assert pool.redactor() is before
    added = pool.add("sk-added-later-0123")
    assert pool.redactor() is not before
    assert pool.redact(f"{SECRET} sk-added-later-0123") == "**** ****"
    pool.remove(added)
    assert pool.redact("sk-added-later-0123") == "****"  # a lease of it may still be in use
