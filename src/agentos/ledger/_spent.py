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
_TOTALS = f"""SELECT total(cost), total(tokens), 0 {_REPORTED} UNION ALL
    SELECT total(cost), total(input_tokens + output_tokens), total(requests > 0 AND cost IS NULL) {_COUNTED}"""
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
    is_known = not any(row[2] for row in rows)
    cost = sum(row[0] for row in rows) if is_known else None
    return Spent(cost, int(sum(row[1] for row in rows)), counts.succeeded + counts.failed, by_item)
