-- A key for each message, in a file outside of this database: see docs/architecture/keys.md.

-- Messages with greater numbers are stored encrypted, each under its key; the others as they came.
ALTER TABLE groups ADD COLUMN keyed_after INTEGER NOT NULL DEFAULT 9223372036854775807;

-- One row, once the database has a key file.
CREATE TABLE key_state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    keys_id BLOB NOT NULL,                      -- names the key file of this database
    settled INTEGER NOT NULL DEFAULT 1          -- 0: the key file may have keys of messages that a restore took back
) STRICT;

-- The keys that the next run, or the one under way, has to lose: written in the transactions that delete the rows.
CREATE TABLE key_erasures (
    group_id BLOB NOT NULL,
    first_seq INTEGER NOT NULL,                 -- numbers, inclusive
    last_seq INTEGER NOT NULL,
    PRIMARY KEY (group_id, first_seq, last_seq)
) STRICT, WITHOUT ROWID;

-- Where copies of the key file were written.
CREATE TABLE key_copies (
    path TEXT PRIMARY KEY,
    made_at INTEGER NOT NULL,                   -- Unix seconds
    serial INTEGER NOT NULL                     -- the last change that it has
) STRICT;

-- A deleted group gives no numbers any more, and needs no keys for those before its messages were under keys.
CREATE TRIGGER tombstone_added AFTER INSERT ON tombstones WHEN EXISTS (SELECT 1 FROM key_state) BEGIN
    INSERT OR IGNORE INTO key_erasures (group_id, first_seq, last_seq)
    SELECT group_id, last_seq + 1, 9223372036854775807 FROM groups WHERE group_key = new.group_key
    UNION ALL SELECT group_id, 0, min(keyed_after, last_seq) FROM groups WHERE group_key = new.group_key;
END;

-- With the tombstone of a group goes all that is left of its keys, also of numbers that were never given.
CREATE TRIGGER tombstone_removed AFTER DELETE ON tombstones WHEN EXISTS (SELECT 1 FROM key_state) BEGIN
    INSERT OR IGNORE INTO key_erasures (group_id, first_seq, last_seq) VALUES (old.group_id, 0, 9223372036854775807);
END;
