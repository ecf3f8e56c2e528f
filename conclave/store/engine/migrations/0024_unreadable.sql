-- Archived messages whose keys are lost before their files are written anew: see docs/architecture/keys.md.

-- What of a part cannot be read any more, and waits in the table. The index counts it until it is overwritten.
CREATE TABLE archive_unreadable (
    group_key INTEGER NOT NULL,
    lifetime INTEGER NOT NULL,                  -- the part: see archive_parts
    span INTEGER NOT NULL,
    since INTEGER NOT NULL,                     -- Unix seconds; 0: the part is to be written anew by the next run
    dead_up_to INTEGER NOT NULL,                -- what the archive has of the group up to this number has no keys
    dead_messages INTEGER NOT NULL,             -- how many of these the part has, of which receipts have told
    first_left INTEGER,                         -- no number below it has a key; NULL: nothing of the part has one
    oldest_left INTEGER,                        -- likewise, the least created_at
    PRIMARY KEY (group_key, lifetime, span)
) STRICT;

-- The parts of the archive as far as their messages have keys, or never had any.
CREATE VIEW readable_parts AS
SELECT group_key, lifetime, span, ifnull(max(first_left, first_seq), first_seq) AS first_seq, last_seq,
    ifnull(max(oldest_left, oldest), oldest) AS oldest, newest,
    message_count - ifnull(dead_messages, 0) AS message_count,
    body_bytes - body_bytes * ifnull(dead_messages, 0) / max(message_count, 1) AS body_bytes
FROM archive_parts LEFT JOIN archive_unreadable USING (group_key, lifetime, span)
WHERE since IS NULL OR first_left IS NOT NULL;

-- How many of the messages lay in the archive still when the receipt was made, without keys.
ALTER TABLE erasures ADD COLUMN waiting INTEGER NOT NULL DEFAULT 0;
ALTER TABLE receipts ADD COLUMN waiting INTEGER NOT NULL DEFAULT 0;
