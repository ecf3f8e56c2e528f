-- What the hot store knows of the archive: which messages are there, and where in it.

-- At or below: in the archive, or gone. What is still in the hot store of these is a copy that cleanup removes.
ALTER TABLE groups ADD COLUMN archived_seq INTEGER NOT NULL DEFAULT 0;

-- One row: the archive of this store.
CREATE TABLE archive_state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    archive_id TEXT NOT NULL,                   -- names this store's moves in the table's log
    version INTEGER NOT NULL DEFAULT 0,         -- of the table: readers need this one or a later one
    unerased INTEGER NOT NULL DEFAULT 0         -- files were replaced or dropped, and may still be on disk
) STRICT;

-- A batch of messages on its way: fixed here first, so that a crash leaves no doubt what belongs to it.
CREATE TABLE archive_moves (
    batch INTEGER PRIMARY KEY AUTOINCREMENT,
    fixed_at INTEGER NOT NULL,
    message_count INTEGER NOT NULL DEFAULT 0,   -- as verified in the archive
    checksum INTEGER NOT NULL DEFAULT 0,        -- XOR of the messages' checksums
    finished_at INTEGER                         -- null: under way
) STRICT;
CREATE INDEX archive_moves_under_way ON archive_moves (batch) WHERE finished_at IS NULL;

-- Which messages belong to the batch under way: those stored then, of numbers first_seq to last_seq, inclusive.
CREATE TABLE archive_move_ranges (
    batch INTEGER NOT NULL REFERENCES archive_moves ON DELETE CASCADE,
    group_key INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    lifetime INTEGER NOT NULL,                  -- the group's effective expiry when the batch was fixed
    PRIMARY KEY (batch, group_key)
) STRICT, WITHOUT ROWID;

-- The index: what of a group lies in which part (retention class and time span) of the archive.
-- No reference to groups: what a deleted group leaves is erased by cleanup.
CREATE TABLE archive_parts (
    group_key INTEGER NOT NULL,
    lifetime INTEGER NOT NULL,
    span INTEGER NOT NULL,                      -- its first Unix second
    first_seq INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    oldest INTEGER NOT NULL,                    -- created_at, Unix seconds
    newest INTEGER NOT NULL,
    message_count INTEGER NOT NULL,
    body_bytes INTEGER NOT NULL,
    checksum INTEGER NOT NULL,                  -- XOR of the messages' checksums
    PRIMARY KEY (group_key, span, lifetime)
) STRICT, WITHOUT ROWID;
CREATE INDEX archive_parts_by_part ON archive_parts (lifetime, span);

-- Who has application messages in the archive, and in which groups: what a deleted account leaves is found by it.
CREATE TABLE archive_senders (
    sender_id BLOB NOT NULL,
    group_key INTEGER NOT NULL,
    PRIMARY KEY (sender_id, group_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX archive_senders_by_group ON archive_senders (group_key);
