-- The messages of a group lie together, in their order: a page is one place in the table, not one for each message.
CREATE TABLE messages_by_group (
    message_id INTEGER NOT NULL,                -- the id of its body
    group_key INTEGER NOT NULL,
    sequence_num INTEGER NOT NULL,
    sender_id BLOB NOT NULL,
    is_commit INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (group_key, sequence_num)
) STRICT, WITHOUT ROWID;
INSERT INTO messages_by_group SELECT * FROM messages ORDER BY group_key, sequence_num;
DROP TABLE messages;
ALTER TABLE messages_by_group RENAME TO messages;
CREATE UNIQUE INDEX messages_by_body ON messages (message_id);
CREATE INDEX messages_by_age ON messages (group_key, created_at);

-- By sender, within blocks of 4096 bodies that were stored one after the other. By sender alone, nearly each message
-- would change another page of the index. See conclave/store/senders.py.
CREATE INDEX messages_by_sender ON messages (message_id >> 12, sender_id, is_commit);

-- The blocks in which there are messages, in ascending order.
CREATE VIEW message_blocks AS
WITH RECURSIVE blocks (block) AS (
    SELECT min(message_id) >> 12 FROM messages
    UNION ALL
    SELECT (SELECT min(message_id) FROM messages WHERE message_id >= (block + 1) << 12) >> 12
    FROM blocks WHERE block IS NOT NULL
)
SELECT block FROM blocks WHERE block IS NOT NULL;

CREATE TRIGGER message_dated AFTER UPDATE OF created_at ON messages WHEN new.created_at != old.created_at BEGIN
    INSERT INTO touches (group_key) VALUES (new.group_key);
END;
