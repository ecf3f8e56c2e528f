-- What senders call their messages, for a day: a message that is sent again after a lost answer keeps its number. No
-- references: a group or an account with very many must not be slow to delete, and keys and ids never come back.
CREATE TABLE send_ids (
    send_key INTEGER PRIMARY KEY,               -- in the order of sending
    group_key INTEGER NOT NULL,
    user_id BLOB NOT NULL,                      -- the sender
    send_id BLOB NOT NULL,                      -- made by the client
    sequence_num INTEGER NOT NULL,              -- what the message got; it may be erased by now
    sent_at INTEGER NOT NULL,
    UNIQUE (user_id, group_key, send_id)
) STRICT;
