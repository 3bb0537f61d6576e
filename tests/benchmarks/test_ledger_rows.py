"""The benchmark of the ledger, which uses private modules, fits them: it writes a few rows on each path."""

import sqlite3

from benchmarks import ledger


def rows(path):
    with sqlite3.connect(path) as connection:
        return connection.execute("SELECT id, outcome, credential_id, value FROM items ORDER BY id").fetchall()


def test_peers_write_the_rows_of_a_recorded_run(tmp_path):
    paths = [tmp_path / name for name in ("recorded.db", "inserted.db", "committed.db")]
    ledger.record_many(paths[0], ledger._outcomes(3))
    ledger.insert_many(paths[1], ledger._rows(3))
    ledger.commit_each(paths[2], 3)
    expected = [(str(number), "succeeded", "key-12345678", "1") for number in range(3)]
    assert [rows(path) for path in paths] == [expected] * 3
