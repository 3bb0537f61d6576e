"""Reads what a run has spent: as its gateway counted it, else as its workers reported it."""

from __future__ import annotations

import sqlite3

from agentos.items.results import Spent

from . import _database as database
from ._batch import decode_id

# Attempts whose usage no gateway has counted.
_REPORTED = """FROM attempts AS a WHERE a.run = ?1 AND NOT EXISTS (SELECT 1 FROM request_usage AS u
    WHERE u.run = a.run AND u.item_id = a.item_id AND u.launch = a.launch AND u.n = a.n)"""
_COUNTED = "FROM request_usage AS u WHERE u.run = ?1"
_ENDED = "CASE WHEN item_id IN (SELECT id FROM items WHERE run = ?1 AND outcome IS NOT NULL) THEN"
_TOTALS = f"""SELECT total(cost), total(tokens), 0, total({_ENDED} cost END), total({_ENDED} tokens END) {_REPORTED}
    UNION ALL SELECT total(cost), total(input_tokens + output_tokens), total(requests > 0 AND cost IS NULL),
    total({_ENDED} cost END), total({_ENDED} input_tokens + output_tokens END) {_COUNTED}"""
_NOT_SUCCEEDED = "id NOT IN (SELECT id FROM items WHERE run = ?1 AND outcome = 'succeeded')"
_BY_ITEM = f"""SELECT id, total(cost) FROM (SELECT item_id AS id, cost {_REPORTED} UNION ALL
    SELECT item_id AS id, cost {_COUNTED}) WHERE {_NOT_SUCCEEDED} GROUP BY id HAVING total(cost) > 0"""


def read_spent(connection: sqlite3.Connection, run: int) -> Spent:
    """Return what a run has spent so far, with the requests that were under way when a launch was killed."""
    if not database.has_request_usage(connection):
        return Spent()  # of an older version, which knew no gateway; a writer migrates it before
    rows = connection.execute(_TOTALS, (run,)).fetchall()
    counts = database.count(connection, run)
    by_item = {decode_id(item_id): cost for item_id, cost in connection.execute(_BY_ITEM, (run,))}
    cost, tokens, unknown, ended_cost, ended_tokens = map(sum, zip(*rows, strict=True))
    ended = counts.succeeded + counts.failed
    return Spent(None if unknown else cost, int(tokens), ended, by_item, ended_cost, int(ended_tokens))
