-- Messages that were taken back: everybody sees them only redacted, until cleanup has erased them, here or in the
-- archive. The row stays for some time after that: devices that were away learn from it what they must not keep.

-- How many of these a group has that are not erased. Nobody looks for them in a group that has none.
ALTER TABLE groups ADD COLUMN taken_back_count INTEGER NOT NULL DEFAULT 0;

CREATE TABLE taken_back (
    group_key INTEGER NOT NULL,
    sequence_num INTEGER NOT NULL,
    taken_at INTEGER NOT NULL,
    taken_by BLOB NOT NULL,                     -- the sender, or an admin; empty: a restore knows it from the ledger
    erased INTEGER NOT NULL DEFAULT 0,          -- the message is in neither tier any more
    told_to INTEGER DEFAULT 0,                  -- members up to this id were told; null: all were
    PRIMARY KEY (group_key, sequence_num)
) STRICT, WITHOUT ROWID;
CREATE INDEX taken_back_by_time ON taken_back (group_key, taken_at);
CREATE INDEX taken_back_stored ON taken_back (group_key, sequence_num) WHERE NOT erased;
CREATE INDEX taken_back_by_age ON taken_back (taken_at) WHERE erased;
CREATE INDEX taken_back_untold ON taken_back (group_key, sequence_num) WHERE told_to IS NOT NULL;

-- Servers remember what they have read.
CREATE TRIGGER message_taken_back AFTER INSERT ON taken_back BEGIN
    INSERT INTO touches (group_key) VALUES (new.group_key);
END;

CREATE TRIGGER ledger_message_taken_back AFTER INSERT ON taken_back BEGIN
    DELETE FROM ledger_changes WHERE kind = 'taken_back' AND subject = new.group_key || ':' || new.sequence_num;
    INSERT INTO ledger_changes (kind, subject) VALUES ('taken_back', new.group_key || ':' || new.sequence_num);
END;
