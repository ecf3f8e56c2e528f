-- What the purge ledger, a file outside this database, has still to be told: what was hidden, ended or taken away.
-- Triggers note it in the transaction that does it, whichever process that is: see conclave/store/ledger/.
-- Who restores an older copy of this database learns from the ledger what that copy must not bring back.
-- A plus sign takes the type of a column away: without it SQLite would look through all changes of a kind.

CREATE TABLE ledger_changes (
    change INTEGER PRIMARY KEY AUTOINCREMENT,   -- counts up for as long as the database lives; a copy knows its last
    kind TEXT NOT NULL,                         -- of what has changed; the ledger gets its state, not each change
    subject ANY NOT NULL,                       -- the key of its row
    since INTEGER NOT NULL DEFAULT 0,           -- of a reader: what the ledger knows of what was read
    UNIQUE (kind, subject)
) STRICT;

-- One row.
CREATE TABLE ledger_state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    ledger_id BLOB NOT NULL,                    -- names the ledger of this database
    claimed INTEGER NOT NULL DEFAULT 0,         -- changes up to this one (inclusive) are durable, and may be written
    written INTEGER NOT NULL DEFAULT 0,         -- changes up to this one (inclusive) are in the file
    restored INTEGER NOT NULL DEFAULT 0         -- the number of the last restore
) STRICT;
INSERT INTO ledger_state (id, ledger_id) VALUES (1, randomblob(16));

CREATE TRIGGER ledger_group_changed AFTER UPDATE OF
    floor_seq, gone_below, expired_before, commits_below, message_expiry_seconds, min_lifetime_seconds, visibility
ON groups
WHEN new.floor_seq != old.floor_seq OR new.gone_below != old.gone_below OR new.expired_before != old.expired_before
    OR new.commits_below != old.commits_below OR new.message_expiry_seconds != old.message_expiry_seconds
    OR new.min_lifetime_seconds != old.min_lifetime_seconds OR new.visibility != old.visibility
BEGIN
    DELETE FROM ledger_changes WHERE kind = 'group' AND subject = +new.group_key;
    INSERT INTO ledger_changes (kind, subject) VALUES ('group', new.group_key);
END;

CREATE TRIGGER ledger_group_removed AFTER DELETE ON groups BEGIN
    DELETE FROM ledger_changes WHERE kind = 'group' AND subject = +old.group_key;
    INSERT INTO ledger_changes (kind, subject) VALUES ('group', old.group_key);
END;

-- Where a group goes, nothing has to be told of what was in it.
CREATE TRIGGER ledger_member_removed AFTER DELETE ON members
WHEN EXISTS (SELECT 1 FROM groups WHERE group_key = old.group_key)
BEGIN
    DELETE FROM ledger_changes WHERE kind = 'member' AND subject = +old.member_id;
    INSERT INTO ledger_changes (kind, subject) VALUES ('member', old.member_id);
END;

CREATE TRIGGER ledger_role_changed AFTER UPDATE OF role ON members WHEN new.role != old.role BEGIN
    DELETE FROM ledger_changes WHERE kind = 'member' AND subject = +new.member_id;
    INSERT INTO ledger_changes (kind, subject) VALUES ('member', new.member_id);
END;

-- What starts timers. The lowest number that the ledger may not know of is kept.
CREATE TRIGGER ledger_member_read AFTER UPDATE OF read_up_to ON members
WHEN new.read_up_to > old.read_up_to
    AND EXISTS (SELECT 1 FROM groups WHERE group_key = new.group_key AND self_destructs)
BEGIN
    INSERT INTO ledger_changes (kind, subject, since)
    SELECT 'unread', new.member_id,
        min(old.read_up_to, ifnull((SELECT since FROM ledger_changes WHERE kind = 'read' AND subject = +new.member_id),
            old.read_up_to));
    DELETE FROM ledger_changes WHERE kind = 'read' AND subject = +new.member_id;
    UPDATE ledger_changes SET kind = 'read' WHERE kind = 'unread' AND subject = +new.member_id;
END;

CREATE TRIGGER ledger_message_ended AFTER UPDATE OF ended ON self_destructing WHEN new.ended AND NOT old.ended BEGIN
    DELETE FROM ledger_changes WHERE kind = 'ended' AND subject = new.group_key || ':' || new.sequence_num;
    INSERT INTO ledger_changes (kind, subject) VALUES ('ended', new.group_key || ':' || new.sequence_num);
END;

CREATE TRIGGER ledger_banned AFTER INSERT ON bans BEGIN
    DELETE FROM ledger_changes WHERE kind = 'ban' AND subject = +new.ban_key;
    INSERT INTO ledger_changes (kind, subject) VALUES ('ban', new.ban_key);
END;

CREATE TRIGGER ledger_unbanned AFTER DELETE ON bans
WHEN EXISTS (SELECT 1 FROM groups WHERE group_key = old.group_key)
BEGIN
    DELETE FROM ledger_changes WHERE kind = 'ban' AND subject = +old.ban_key;
    INSERT INTO ledger_changes (kind, subject) VALUES ('ban', old.ban_key);
END;

CREATE TRIGGER ledger_invite_ended AFTER DELETE ON invites
WHEN EXISTS (SELECT 1 FROM groups WHERE group_key = old.group_key)
BEGIN
    DELETE FROM ledger_changes WHERE kind = 'invite' AND subject = +old.invite_key;
    INSERT INTO ledger_changes (kind, subject) VALUES ('invite', old.invite_key);
END;

CREATE TRIGGER ledger_welcome_ended AFTER DELETE ON welcomes
WHEN EXISTS (SELECT 1 FROM groups WHERE group_key = old.group_key)
BEGIN
    DELETE FROM ledger_changes WHERE kind = 'welcome' AND subject = +old.welcome_key;
    INSERT INTO ledger_changes (kind, subject) VALUES ('welcome', old.welcome_key);
END;

CREATE TRIGGER ledger_account_removed AFTER DELETE ON users BEGIN
    DELETE FROM ledger_changes WHERE kind IN ('account', 'password') AND subject = +old.user_id;
    INSERT INTO ledger_changes (kind, subject) VALUES ('account', old.user_id);
END;

CREATE TRIGGER ledger_account_disabled AFTER UPDATE OF disabled ON users WHEN new.disabled != old.disabled BEGIN
    DELETE FROM ledger_changes WHERE kind = 'account' AND subject = +new.user_id;
    INSERT INTO ledger_changes (kind, subject) VALUES ('account', new.user_id);
END;

CREATE TRIGGER ledger_password_changed AFTER UPDATE OF password_hash ON users
WHEN new.password_hash != old.password_hash
BEGIN
    DELETE FROM ledger_changes WHERE kind = 'password' AND subject = +new.user_id;
    INSERT INTO ledger_changes (kind, subject) VALUES ('password', new.user_id);
END;

CREATE TRIGGER ledger_held AFTER INSERT ON holds BEGIN
    DELETE FROM ledger_changes WHERE kind = 'hold' AND subject = +new.hold_id;
    INSERT INTO ledger_changes (kind, subject) VALUES ('hold', new.hold_id);
END;

CREATE TRIGGER ledger_released AFTER DELETE ON holds BEGIN
    DELETE FROM ledger_changes WHERE kind = 'hold' AND subject = +old.hold_id;
    INSERT INTO ledger_changes (kind, subject) VALUES ('hold', old.hold_id);
END;

CREATE TRIGGER ledger_settings_changed AFTER UPDATE OF policy_settings ON server_state
WHEN new.policy_settings != old.policy_settings
BEGIN
    DELETE FROM ledger_changes WHERE kind = 'settings' AND subject = 0;
    INSERT INTO ledger_changes (kind, subject) VALUES ('settings', 0);
END;
