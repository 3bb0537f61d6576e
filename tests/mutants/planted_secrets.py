"""Planted bugs of the redactor: each lets a secret, or a part of it, reach the output."""

from __future__ import annotations

from . import Mutant, tests_of

REDACTION = "redaction/test_redaction"

MUTANTS = (
    Mutant(
        "The stream holds back too few characters and writes the beginning of a secret",
        "redaction/_finder.py",
        "for start in range(max(0, len(text) - self._sampling.min_form + 1), open_at):",
        "for start in range(max(0, len(text) - self._sampling.width), open_at):",
        tests_of(REDACTION, "test_secret_in_two_chunks_is_masked"),
    ),
    Mutant(
        "Of two secrets cut off by a chunk the stream holds back only the later",
        "redaction/_finder.py",
        "elif end > len(text) and start < open_at and form.startswith(text[start:]):",
        "elif end > len(text) and form.startswith(text[start:]):",
        tests_of(REDACTION, "test_stream_holds_back_both_of_two_overlapping_secrets"),
    ),
    Mutant(
        "The stream writes the end of a secret whose mask it wrote with the chunk before",
        "redaction/redactor.py",
        "self._covered_bytes = max(0, covered_end - settled_end)",
        "self._covered_bytes = 0",
        tests_of(REDACTION, "test_overlapping_secrets_share_a_mask_adjacent_ones_do_not"),
    ),
    Mutant(
        "A flush drops the characters held back",
        "redaction/redactor.py",
        "self._finder.spans(self._tail), len(self._tail))",
        "self._finder.spans(self._tail), 0)",
        tests_of(REDACTION, "test_stream_can_be_fed_after_flush"),
    ),
    Mutant(
        "A flush writes the characters held back without masking",
        "redaction/redactor.py",
        "self._release(self._tail, self._finder.spans(self._tail), len(self._tail))",
        "self._release(self._tail, [], len(self._tail))",
        tests_of(REDACTION, "test_flush_masks_secret_that_begins_a_longer_one"),
    ),
    Mutant(
        "The redactor misses a secret that is interrupted by terminal codes",
        "redaction/_finder.py",
        "return spans + plain_spans, min(",
        "return spans, min(",
        tests_of(REDACTION, "test_secret_across_terminal_codes_is_masked"),
    ),
    Mutant(
        "The redactor misses a secret inside a terminal code",
        "redaction/_finder.py",
        "return spans + plain_spans, min(",
        "return plain_spans, min(",
        tests_of(REDACTION, "test_secret_inside_terminal_code_is_masked"),
    ),
    Mutant(
        "The finder samples too sparsely for forms of 14 bytes and misses some of them",
        "redaction/_finder.py",
        '_Sampling("Q", 8, 1, 8, 15)',
        '_Sampling("Q", 8, 1, 8, 14)',
        tests_of(REDACTION, "test_form_of_any_length_is_found_at_any_position"),
    ),
    Mutant(
        "The longer of two overlapping secrets is masked only in part",
        "redaction/redactor.py",
        "covered_end = max(covered_end, end)",
        "covered_end = end",
        tests_of(REDACTION, "test_secret_inside_another_leaves_no_rest"),
    ),
    Mutant(
        "The redactor misses one of the three base64 alignments of a secret",
        "redaction/_encodings.py",
        "for before in range(3):",
        "for before in range(2):",
        tests_of(REDACTION, "test_base64_of_secret_is_masked_at_every_alignment"),
    ),
    Mutant(
        "The redactor misses a secret in upper-case hex",
        "redaction/_encodings.py",
        "forms = {raw.hex(), raw.hex().upper()}",
        "forms = {raw.hex()}",
        tests_of(REDACTION, "test_secret_is_masked_in_every_form"),
    ),
    Mutant(
        "The redactor misses encoded forms that are escaped again in JSON",
        "redaction/_encodings.py",
        "for text in forms for form in (text, *json_forms(text))}",
        "for text in forms for form in (text,)}",
        tests_of(REDACTION, "test_secret_is_masked_in_every_form"),
    ),
    Mutant(
        "The redactor misses URL escapes with lower-case hex digits",
        "redaction/_encodings.py",
        '            yield re.sub("%..", lambda match: match[0].lower(), form)\n',
        "",
        tests_of(REDACTION, "test_secret_is_masked_in_every_form"),
    ),
)
