-- A ledger: the durable record of one or more runs. Written by one connection, read by any number.
-- Instants are epoch seconds, durations are seconds, values are JSON. An id that is not valid Unicode is stored as bytes.
-- SQLite stores the text of each statement, with its comments: change only comments outside of statements.

CREATE TABLE runs (
    run INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL
);

-- One start or resume of a run. The number is a fencing token: only the newest launch of a run may write.
CREATE TABLE launches (
    run INTEGER NOT NULL REFERENCES runs,
    launch INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    host TEXT NOT NULL,
    started_at REAL NOT NULL,
    ended_at REAL, -- NULL: it is running, or was killed
    stopped TEXT, -- why it ended early
    PRIMARY KEY (run, launch)
) WITHOUT ROWID;

-- Number of transactions since the ledger was created. The next launch compares it with the note of the last owner: see
-- ownership.py.
CREATE TABLE written (ledger_id TEXT NOT NULL, commits INTEGER NOT NULL);

-- One row per item that was started, with its outcome and its newest attempt. Most items need one attempt and are
-- written once.
CREATE TABLE items (
    run INTEGER NOT NULL,
    id TEXT NOT NULL,
    outcome TEXT CHECK (outcome IN ('succeeded', 'failed')), -- NULL: it has not ended
    launch INTEGER NOT NULL, -- of the newest attempt, as all up to cost
    n INTEGER NOT NULL, -- its number in that launch; 0: the item could not be started as given
    credential_id TEXT,
    waited REAL, -- for its credential
    started_at REAL,
    ended_at REAL, -- NULL: it is running, or was killed
    verdict TEXT, -- 'succeeded', 'failed', 'interrupted', 'worker_died', or what the provider said
    requests INTEGER,
    tokens INTEGER,
    cost REAL,
    error TEXT,
    duration REAL, -- from the item's first start in that launch to its end
    metadata TEXT,
    input_hash BLOB, -- of a long input; a short one is compared as it is
    input TEXT,
    value TEXT,
    checksum INTEGER, -- of all other columns: see _checksums.py
    PRIMARY KEY (run, id)
);
CREATE INDEX failed ON items (run) WHERE outcome = 'failed';
CREATE INDEX unfinished ON items (run) WHERE outcome IS NULL;

CREATE TABLE earlier_attempts (
    run INTEGER NOT NULL,
    item_id TEXT NOT NULL,
    launch INTEGER NOT NULL,
    n INTEGER NOT NULL,
    credential_id TEXT,
    waited REAL,
    started_at REAL,
    ended_at REAL,
    verdict TEXT,
    requests INTEGER,
    tokens INTEGER,
    cost REAL,
    error TEXT,
    PRIMARY KEY (run, item_id, launch, n)
) WITHOUT ROWID;

-- An attempt replaces the one before it in `items`; these triggers copy the replaced attempt to `earlier_attempts`.
CREATE TRIGGER keep_attempt BEFORE UPDATE ON items WHEN OLD.n > 0 AND (OLD.launch, OLD.n) <> (NEW.launch, NEW.n) BEGIN
    INSERT INTO earlier_attempts VALUES (
        OLD.run, OLD.id, OLD.launch, OLD.n, OLD.credential_id, OLD.waited, OLD.started_at, OLD.ended_at, OLD.verdict,
        OLD.requests, OLD.tokens, OLD.cost, OLD.error
    );
END;
CREATE TRIGGER keep_last_attempt BEFORE DELETE ON items WHEN OLD.n > 0 BEGIN
    INSERT INTO earlier_attempts VALUES (
        OLD.run, OLD.id, OLD.launch, OLD.n, OLD.credential_id, OLD.waited, OLD.started_at, OLD.ended_at, OLD.verdict,
        OLD.requests, OLD.tokens, OLD.cost, OLD.error
    );
END;

-- One row per attempt.
CREATE VIEW attempts AS
    SELECT * FROM earlier_attempts
    UNION ALL
    SELECT run, id, launch, n, credential_id, waited, started_at, ended_at, verdict, requests, tokens, cost, error
    FROM items WHERE n > 0;

-- What the requests of an attempt have used, as the gateway of its run counted them. No row: the run has no gateway.
CREATE TABLE request_usage (
    run INTEGER NOT NULL,
    item_id TEXT NOT NULL,
    launch INTEGER NOT NULL,
    n INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL, -- without those that were read from a prompt cache
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    cost REAL, -- NULL: the price of a model is not known
    held REAL NOT NULL, -- requests waited for a credential
    refusals INTEGER NOT NULL, -- answers of providers that the client never saw
    PRIMARY KEY (run, item_id, launch, n)
) WITHOUT ROWID;

-- The same for each credential that served them. No row: the run has no gateway, or the ledger is older.
CREATE TABLE credential_usage (
    run INTEGER NOT NULL,
    item_id TEXT NOT NULL,
    launch INTEGER NOT NULL,
    n INTEGER NOT NULL,
    credential_id TEXT NOT NULL,
    requests INTEGER NOT NULL,
    tokens INTEGER NOT NULL, -- input and output, without those that were read from a prompt cache
    cost REAL, -- NULL: the price of a model is not known
    refusals INTEGER NOT NULL,
    PRIMARY KEY (run, item_id, launch, n, credential_id)
) WITHOUT ROWID;

-- Checkpoints of unfinished items.
CREATE TABLE checkpoints (
    run INTEGER NOT NULL,
    item_id TEXT NOT NULL,
    launch INTEGER NOT NULL,
    n INTEGER NOT NULL,
    saved TEXT NOT NULL,
    checksum INTEGER, -- as in items
    PRIMARY KEY (run, item_id)
);

-- Names of the files that items may have created.
CREATE TABLE files (
    run INTEGER NOT NULL,
    item_id TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (run, item_id)
) WITHOUT ROWID;

-- Process groups that are running, or whose launch was killed.
CREATE TABLE processes (
    run INTEGER NOT NULL,
    pgid INTEGER NOT NULL,
    born TEXT NOT NULL, -- the boot and the instant within it, so that a reused number is not mistaken for it
    PRIMARY KEY (run, pgid)
) WITHOUT ROWID;
