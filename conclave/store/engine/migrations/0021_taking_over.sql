-- Messages that were stored before there were keys are taken over by cleanup: see docs/architecture/keys.md.

-- Segments up to this one may have messages that lie as they came; in greater ones all messages are under keys.
ALTER TABLE key_state ADD COLUMN plain_segments INTEGER NOT NULL DEFAULT 0;
ALTER TABLE key_state ADD COLUMN taken_over INTEGER NOT NULL DEFAULT 0;
UPDATE key_state SET plain_segments = ifnull((SELECT max(segment) FROM body_segments), 0);
UPDATE body_segments SET sealed = 1 WHERE EXISTS (SELECT 1 FROM key_state);

-- Parts of the archive that may have messages which lie as they came: known once the hot store has none any more.
CREATE TABLE plain_parts (
    group_key INTEGER NOT NULL,
    lifetime INTEGER NOT NULL,                  -- the part: see archive_parts
    span INTEGER NOT NULL,
    PRIMARY KEY (lifetime, span, group_key)
) STRICT, WITHOUT ROWID;

-- Of a deleted group what is held is taken over too, and needs the keys that it has until it goes.
ALTER TABLE tombstones ADD COLUMN keyed_after INTEGER NOT NULL DEFAULT 0;

DROP TRIGGER tombstone_added;
CREATE TRIGGER tombstone_added AFTER INSERT ON tombstones WHEN EXISTS (SELECT 1 FROM key_state) BEGIN
    INSERT OR IGNORE INTO key_erasures (group_id, first_seq, last_seq)
    SELECT group_id, last_seq + 1, 9223372036854775807 FROM groups WHERE group_key = new.group_key;
END;
