"""Why no credential is usable: a short first line, and a line for each credential."""

from __future__ import annotations

from agentos.reporters.unusable_text import detail_lines, ids_to_enable, out_of_use_text, unusable_text

REASONS = {
    "dead": "refused by the provider 2 times in a row: HTTP 401: Incorrect key.\nmore",
    "good": "disabled: testing",
    "poor": "disabled: by hand",
    "other": "does not serve scope gpt-5",
}


def test_first_line_counts_states_and_details_follow() -> None:
    text = unusable_text(REASONS)
    assert text.splitlines()[0] == "no usable credential: 1 quarantined, 2 disabled, 1 for other models"
    assert detail_lines(text) == [
        "dead: quarantined: refused by the provider 2 times in a row: HTTP 401: Incorrect key.",
        "good: disabled: testing",
        "poor: disabled: by hand",
        "other: for other models: does not serve scope gpt-5",
    ]


def test_ids_to_enable_are_those_out_of_use() -> None:
    assert ids_to_enable(unusable_text(REASONS)) == ["dead", "good", "poor"]
    assert ids_to_enable("the budget of 5.00 is used up\na: disabled: by hand") == []
    assert ids_to_enable(None) == []


def test_many_credentials_are_listed_in_part() -> None:
    text = unusable_text({f"key-{number}": "no credit" for number in range(30)})
    assert text.splitlines()[0] == "no usable credential: 30 quarantined"
    assert detail_lines(text)[-1] == "and 10 more"


def test_empty_pool_has_no_details() -> None:
    assert unusable_text({}) == "no usable credential: the pool is empty"


def test_line_breaks_and_controls_stay_in_one_line() -> None:
    assert out_of_use_text("a\x1b[2J\nb") == "quarantined: a\\x1b[2J"
