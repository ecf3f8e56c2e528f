-- What operators decide about retention, and what they can prove of it.

ALTER TABLE groups ADD COLUMN min_lifetime_seconds INTEGER NOT NULL DEFAULT -1;   -- -1: inherit
CREATE INDEX groups_by_policy ON groups (message_expiry_seconds, min_lifetime_seconds);
-- A mark: commits up to this number (inclusive) were fetched by all who were members at that time. Only it decides
-- which commits `retain_commits` keeps from expiring, since the floor may start again at a lower number.
ALTER TABLE groups ADD COLUMN commits_below INTEGER NOT NULL DEFAULT 0;

-- What decides when the messages of a deleted group may be erased.
ALTER TABLE tombstones ADD COLUMN group_id BLOB NOT NULL DEFAULT x'';
ALTER TABLE tombstones ADD COLUMN message_expiry_seconds INTEGER NOT NULL DEFAULT -1;
ALTER TABLE tombstones ADD COLUMN min_lifetime_seconds INTEGER NOT NULL DEFAULT -1;

-- Legal holds. Released ones are in the audit log only. No reference: a hold outlives what it covers.
CREATE TABLE holds (
    hold_id INTEGER PRIMARY KEY AUTOINCREMENT,
    group_key INTEGER,                          -- all messages of a group, or
    user_id BLOB,                               -- all messages that a user has sent
    subject_id BLOB NOT NULL,                   -- group_id or user_id
    name TEXT NOT NULL,                         -- of the group or user when the hold was added
    reason TEXT NOT NULL,
    added_by TEXT NOT NULL,                     -- the system user
    added_at INTEGER NOT NULL,
    CHECK ((group_key IS NULL) != (user_id IS NULL))
) STRICT;
CREATE INDEX holds_by_group ON holds (group_key) WHERE group_key IS NOT NULL;
CREATE INDEX holds_by_user ON holds (user_id) WHERE user_id IS NOT NULL;

-- Who decided what. It outlives what it speaks of, so it has names as they were.
CREATE TABLE audit (
    audit_id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,                        -- "operator NAME" (a system user), "admin NAME" (a user), or "server"
    action TEXT NOT NULL,
    subject_id BLOB NOT NULL DEFAULT x'',       -- of a group or user; empty: the server
    subject TEXT NOT NULL DEFAULT '',           -- its name at that time
    details TEXT NOT NULL DEFAULT '{}'          -- JSON
) STRICT;
CREATE INDEX audit_by_subject ON audit (subject_id, audit_id);
CREATE INDEX audit_by_age ON audit (at);

-- What the run under way has erased, written in the transactions that erase. At its end it goes into receipts.
CREATE TABLE erasures (
    group_key INTEGER NOT NULL,
    rule TEXT NOT NULL,
    messages INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,                  -- the greatest number erased
    newest INTEGER NOT NULL,                    -- the greatest created_at erased, Unix seconds
    group_id BLOB NOT NULL,
    PRIMARY KEY (group_key, rule)
) STRICT, WITHOUT ROWID;

-- What the run under way is about to erase from rows of the archive's index, noted before. The table changes at once,
-- but not with the database: so what a run has erased that did not end is known to the next one.
CREATE TABLE archive_erasures (
    group_key INTEGER NOT NULL,
    lifetime INTEGER NOT NULL,
    span INTEGER NOT NULL,
    rule TEXT NOT NULL,
    messages INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    newest INTEGER NOT NULL,
    PRIMARY KEY (group_key, span, lifetime, rule)
) STRICT, WITHOUT ROWID;

-- Receipts: what each run has erased of each group. A chain: each has the hash of the one before it.
CREATE TABLE receipts (
    receipt_id INTEGER PRIMARY KEY,             -- counts up by one
    at INTEGER NOT NULL,
    job TEXT NOT NULL,
    group_id BLOB NOT NULL,
    rule TEXT NOT NULL,
    messages INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    newest INTEGER NOT NULL,
    hash BLOB NOT NULL                          -- SHA-256 of the former receipt's hash and of this one
) STRICT;
CREATE INDEX receipts_by_group ON receipts (group_id, receipt_id);

-- One row: the last receipt that is no longer kept. The chain goes on from its hash.
CREATE TABLE receipts_anchor (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    receipt_id INTEGER NOT NULL,
    hash BLOB NOT NULL
) STRICT;
INSERT INTO receipts_anchor VALUES (1, 0, x'0000000000000000000000000000000000000000000000000000000000000000');

-- A hold, or an operator's override, shows in no message: nothing that a server remembers is touched by them.
