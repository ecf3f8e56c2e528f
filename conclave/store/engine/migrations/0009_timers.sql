-- Self-destructing messages: each reader sees one until a timer of that reader's own ends.

-- Who was a member when a message was sent: whoever is one now and has joined before it. `joined_after` is the group's
-- last number at that time. Who leaves does not count any more, and who comes back begins anew, so no row is needed for
-- those who are gone. Members from before this migration count from the start: no earlier message destroys itself.
ALTER TABLE members ADD COLUMN joined_after INTEGER NOT NULL DEFAULT 0;
-- What the member has read: everything up to this number (inclusive). Never below joined_after, and never goes down.
ALTER TABLE members ADD COLUMN read_up_to INTEGER NOT NULL DEFAULT 0;
CREATE INDEX members_by_read ON members (group_key, read_up_to);

-- How many such messages the group has stored. Nobody looks for timers in a group that has none.
ALTER TABLE groups ADD COLUMN self_destructs INTEGER NOT NULL DEFAULT 0;

-- What a message that destroys itself has beside its row in messages, which is deleted with this one.
CREATE TABLE self_destructing (
    group_key INTEGER NOT NULL,
    sequence_num INTEGER NOT NULL,
    seconds INTEGER NOT NULL,                   -- how long a reader may see it once it was read
    ended INTEGER NOT NULL DEFAULT 0,           -- was too old under former settings: no timer starts any more
    PRIMARY KEY (group_key, sequence_num)
) STRICT, WITHOUT ROWID;

-- A timer for each member who has read such a message. It stays for as long as the message does, and until the member
-- was told of its end.
CREATE TABLE timers (
    timer_id INTEGER PRIMARY KEY,
    group_key INTEGER NOT NULL,
    sequence_num INTEGER NOT NULL,
    member_id INTEGER NOT NULL,                 -- no reference: who left long ago may have very many
    seconds INTEGER NOT NULL,
    redact_at INTEGER NOT NULL,                 -- the first second at which the member sees it only redacted
    told INTEGER NOT NULL DEFAULT 0,            -- the member's streams were told of its end
    UNIQUE (group_key, sequence_num, member_id)
) STRICT;
CREATE INDEX timers_by_end ON timers (redact_at) WHERE NOT told;
CREATE INDEX timers_of_message ON timers (group_key, sequence_num, redact_at);

-- Messages that are gone, and whose timers cleanup still has to delete.
CREATE TABLE ended_timers (
    group_key INTEGER NOT NULL,
    sequence_num INTEGER NOT NULL,
    PRIMARY KEY (group_key, sequence_num)
) STRICT, WITHOUT ROWID;

-- Whom nobody has told yet that a message was redacted: told with the next stream that the user opens.
CREATE TABLE missed_redactions (
    missed_id INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id BLOB NOT NULL REFERENCES users ON DELETE CASCADE,
    group_key INTEGER NOT NULL,
    sequence_num INTEGER NOT NULL
) STRICT;
CREATE INDEX missed_redactions_by_user ON missed_redactions (user_id, missed_id);
