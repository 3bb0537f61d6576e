"""`find_duplicate` and `RecentIds`: items with the same id."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentos.items.duplicates import MAX_REMEMBERED, RecentIds, find_duplicate


@given(st.lists(st.sampled_from("abcdefgh"), max_size=12), st.booleans())
def test_find_duplicate_with_and_without_bitmap(ids: list[str], with_bitmap: bool) -> None:
    duplicate = find_duplicate(lambda: ids, MAX_REMEMBERED + 1 if with_bitmap else len(ids))
    if len(set(ids)) == len(ids):
        assert duplicate is None
    else:
        assert duplicate is not None
        assert ids.count(duplicate) > 1


def test_find_duplicate_among_very_many_ids() -> None:
    count = 150_000
    assert find_duplicate(lambda: map(str, range(count)), count) is None
    numbers = [*range(count - 1), 77]
    assert find_duplicate(lambda: map(str, numbers), count) == "77"


def test_recent_ids_forget_the_oldest_beyond_capacity() -> None:
    recent = RecentIds(capacity=3)
    assert [recent.add(item_id) for item_id in ("a", "b", "a", "c", "d", "a")] == [True, True, False, True, True, True]
