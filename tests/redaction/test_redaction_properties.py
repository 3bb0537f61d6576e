"""Properties of redaction: secrets of any characters, in every form, in outputs cut into any chunks."""

from __future__ import annotations

import base64
import re

from hypothesis import assume, example
from hypothesis import strategies as st

from agentos.redaction._encodings import forms_of, to_bytes
from agentos.redaction._finder import MAX_CODE_BYTES
from agentos.redaction.mask import MIN_REDACTED
from agentos.redaction.redactor import Redactor
from tests.support.properties import holds_for
from tests.support.texts import ODD

from .test_redaction import CODES, WRITERS, in_chunks, redacted

MASK = b"****"
# Without the mask's character: a mask and its neighbours could spell a secret.
CHARACTERS = st.sampled_from(
    [character for character in ODD if len(character) == 1 and not "\ud800" <= character <= "\udfff"]
) | st.characters(exclude_categories=["Cs"], exclude_characters="*\x1b")
SECRETS = st.lists(
    st.text(CHARACTERS, min_size=8, max_size=30) | st.text("ab-_", min_size=8, max_size=24), min_size=1, max_size=3
)
NOISE = st.binary(max_size=12).map(lambda noise: noise.replace(b"\x1b", b"").replace(b"*", b""))
CUTS = st.lists(st.integers(0, 400), max_size=8)
CODE = st.sampled_from(CODES)


def stretched(written: bytes, codes: list[bytes]) -> bytes:
    """Return the bytes with a terminal code after each of them."""
    return b"".join(bytes([byte]) + codes[at % len(codes)] for at, byte in enumerate(written)) if codes else written


@st.composite
def outputs(draw: st.DrawFn) -> tuple[list[str], bytes]:
    secrets = draw(SECRETS)
    output = b""
    for _ in range(draw(st.integers(1, 4))):
        written = to_bytes(WRITERS[draw(st.sampled_from(sorted(WRITERS)))](draw(st.sampled_from(secrets))))
        spread = draw(st.lists(CODE, max_size=2)) if draw(st.booleans()) else []
        output += draw(NOISE) + stretched(written, spread)
        if draw(st.integers(0, 4)) == 0:
            output = output[: draw(st.integers(0, len(output)))]
    return secrets, output + draw(NOISE)


@holds_for(examples=30, case=outputs(), cuts=CUTS)
@example(case=(["abababab", "babababa"], b"ababababa" * 3), cuts=[1, 9])
def test_no_form_of_any_secret_survives_any_chunking(case: tuple[list[str], bytes], cuts: list[int]) -> None:
    secrets, output = case
    redactor = Redactor(secrets)
    clean = redactor.data(output)
    assert redacted(redactor, in_chunks(output, cuts)) == clean
    assert redacted(redactor, in_chunks(output, list(range(len(output))))) == clean
    plain_output = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)", b"", clean)
    for secret in secrets:
        for name, write in WRITERS.items():
            written = to_bytes(write(secret))
            if name == "base64":
                written = written[: 8 * len(to_bytes(secret)) // 6]  # the last character may depend on the next byte
            assert written not in clean, name
            assert written not in plain_output, name


@holds_for(examples=20, case=outputs(), cuts=CUTS)
def test_redactor_masks_all_forms_and_nothing_else(case: tuple[list[str], bytes], cuts: list[int]) -> None:
    secrets, output = case
    output = output.replace(b"\x1b", b"")
    starts: set[int] = set()
    inside: set[int] = set()
    for form in {form for secret in secrets for form in forms_of(secret)}:
        at = output.find(form)
        while at >= 0:
            starts.add(at)
            inside.update(range(at + 1, at + len(form)))
            at = output.find(form, at + 1)
    expected = b"".join(
        b"" if at in inside else MASK if at in starts else output[at : at + 1] for at in range(len(output))
    )
    redactor = Redactor(secrets)
    assert redactor.data(output) == expected
    assert redacted(redactor, in_chunks(output, cuts)) == expected


@holds_for(
    examples=15, case=outputs(), cuts=CUTS, tail=st.sampled_from([b"", b"\x1b", b"\x1b[", b"\x1b]0;", b"\x1b[31"])
)
def test_stream_holds_back_at_most_a_form_and_codes(
    case: tuple[list[str], bytes], cuts: list[int], tail: bytes
) -> None:
    secrets, output = case
    longest = max(len(form) for secret in secrets for form in forms_of(secret))
    stream = Redactor(secrets).stream()
    for chunk in in_chunks(output + tail, cuts):
        stream.feed(chunk)
        held = re.sub(rb"\x1b(\[[0-?]*[ -/]*[@-~]?|[\]P][^\x00-\x1f]*(\x07|\x1b\\?)?|[ -/]*[0-~]?)", b"", stream._tail)
        assert len(held) < longest
    stream.feed(b"\n" + b"." * MAX_CODE_BYTES + b"\n\n")
    assert len(stream._tail) <= longest + MAX_CODE_BYTES


@holds_for(examples=15, case=outputs(), at=st.integers(0, 200), cuts=CUTS)
def test_near_miss_of_a_secret_is_unchanged(case: tuple[list[str], bytes], at: int, cuts: list[int]) -> None:
    secrets = case[0]
    form = max(forms_of(secrets[0]), key=len)
    near = form[: at % len(form)] + b"\x00" + form[at % len(form) + 1 :]
    assume(not any(character in near for secret in secrets for character in forms_of(secret)))
    redactor = Redactor(secrets)
    assert redactor.data(near) is near
    assert redacted(redactor, in_chunks(near, cuts)) == near


@holds_for(
    examples=15,
    secret=st.text(CHARACTERS, min_size=MIN_REDACTED, max_size=30),
    before=st.binary(max_size=9),
    after=st.binary(max_size=9),
    cuts=CUTS,
)
def test_base64_of_any_secret_is_masked(secret: str, before: bytes, after: bytes, cuts: list[int]) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(before + to_bytes(secret) + after)
        first, end = -(-8 * len(before) // 6), 8 * (len(before) + len(to_bytes(secret))) // 6
        clean = redacted(Redactor([secret]), in_chunks(text, cuts))
        assert text[first:end] not in clean
