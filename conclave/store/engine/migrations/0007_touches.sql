-- What is no longer as a server may remember it. Triggers write it, whichever process makes the change.
-- Before a server uses what it remembers, it looks what was touched since: see conclave/store/touches.py.
CREATE TABLE touches (
    touch INTEGER PRIMARY KEY,                  -- counts up: the newest row is never deleted
    group_key INTEGER,                          -- its marks, its members, or messages in it
    session_id INTEGER                          -- both null: everything
) STRICT;

-- Whoever is further behind forgets everything.
CREATE TRIGGER touches_bounded AFTER INSERT ON touches BEGIN
    DELETE FROM touches WHERE touch <= new.touch - 4096;
END;

CREATE TRIGGER group_changed AFTER UPDATE OF message_expiry_seconds, gone_below, expired_before, archived_seq ON groups
WHEN new.message_expiry_seconds != old.message_expiry_seconds OR new.gone_below != old.gone_below
    OR new.expired_before != old.expired_before OR new.archived_seq != old.archived_seq
BEGIN
    INSERT INTO touches (group_key) VALUES (new.group_key);
END;

CREATE TRIGGER group_removed AFTER DELETE ON groups BEGIN
    INSERT INTO touches (group_key) VALUES (old.group_key);
END;

CREATE TRIGGER member_added AFTER INSERT ON members BEGIN
    INSERT INTO touches (group_key) VALUES (new.group_key);
END;

CREATE TRIGGER member_removed AFTER DELETE ON members BEGIN
    INSERT INTO touches (group_key) VALUES (old.group_key);
END;

-- Accepting the clock brings back times that lie ahead of it.
CREATE TRIGGER message_dated AFTER UPDATE OF created_at ON messages WHEN new.created_at != old.created_at BEGIN
    INSERT INTO touches (group_key) VALUES (new.group_key);
END;

CREATE TRIGGER session_removed AFTER DELETE ON sessions BEGIN
    INSERT INTO touches (session_id) VALUES (old.session_id);
END;

-- A server extends the sessions that it remembers by itself.
CREATE TRIGGER session_shortened AFTER UPDATE OF expires_at, last_used_at ON sessions
WHEN new.expires_at < old.expires_at OR new.last_used_at < old.last_used_at
BEGIN
    INSERT INTO touches (session_id) VALUES (new.session_id);
END;

-- What a deleted account has sent is hidden in all groups.
CREATE TRIGGER account_removed AFTER INSERT ON user_tombstones BEGIN
    INSERT INTO touches (group_key, session_id) VALUES (NULL, NULL);
END;
