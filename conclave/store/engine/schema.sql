-- The schema of a new database, version 1. Ids (BLOB) are 16-byte UUIDs, times are Unix seconds. AUTOINCREMENT where
-- keys must not be reused, since other data may still refer to them.

-- One row: the state of the server. `policy_settings`: those under which the marks are settled, as JSON.
-- `self_destruct_max_age`: the setting in force. `too_old_before`: older self-destructing messages were permanently
-- hidden when it changed (`ended` in their rows, which are deleted with them). `clock_wall` to `clock_boot_id`: the last
-- correct clock reading. `clock_fault`: kept until an operator accepts the clock. `acted_until`: the greatest time acted on.
CREATE TABLE server_state (
    id INTEGER PRIMARY KEY CHECK (id = 1), policy_settings TEXT NOT NULL,
    self_destruct_max_age INTEGER NOT NULL DEFAULT 2592000, too_old_before INTEGER NOT NULL DEFAULT 0,
    last_alive INTEGER NOT NULL, stopped_cleanly INTEGER NOT NULL, clock_wall INTEGER NOT NULL,
    clock_since_boot INTEGER NOT NULL, clock_boot_id TEXT NOT NULL, clock_fault TEXT NOT NULL DEFAULT '',
    acted_until INTEGER NOT NULL DEFAULT 0, clock_acceptances INTEGER NOT NULL DEFAULT 0) STRICT;

CREATE TABLE users (
    user_id BLOB PRIMARY KEY, username TEXT NOT NULL UNIQUE, password_hash TEXT NOT NULL, alias TEXT NOT NULL,
    signing_key_fingerprint TEXT NOT NULL DEFAULT '', created_at INTEGER NOT NULL, disabled INTEGER NOT NULL DEFAULT 0
) STRICT;
-- A deleted account: its application messages are hidden at once, and erased by the next cleanup run. Its commits stay,
-- since the other members cannot continue without them.
CREATE TABLE user_tombstones (user_id BLOB PRIMARY KEY, created_at INTEGER NOT NULL) STRICT;
-- `public_id`: the id in the API; session_id is internal. `token_hash`: SHA-256; the token itself is not stored.
-- `expires_at`: the first second at which it is expired.
CREATE TABLE sessions (
    session_id INTEGER PRIMARY KEY AUTOINCREMENT, public_id BLOB NOT NULL DEFAULT x'', token_hash BLOB NOT NULL UNIQUE,
    user_id BLOB NOT NULL REFERENCES users ON DELETE CASCADE, created_at INTEGER NOT NULL,
    last_used_at INTEGER NOT NULL, expires_at INTEGER NOT NULL) STRICT;
CREATE INDEX sessions_by_user ON sessions (user_id); CREATE INDEX sessions_by_expiry ON sessions (expires_at);
CREATE UNIQUE INDEX sessions_by_public_id ON sessions (public_id);
-- Registration tokens, handed out by operators. `lifetime`: seconds; expired from created_at + lifetime on.
CREATE TABLE registration_tokens (
    token_id INTEGER PRIMARY KEY AUTOINCREMENT, token_hash BLOB NOT NULL UNIQUE, most_uses INTEGER NOT NULL,
    uses INTEGER NOT NULL DEFAULT 0, created_at INTEGER NOT NULL, lifetime INTEGER NOT NULL, added_by TEXT NOT NULL,
    note TEXT NOT NULL) STRICT;
CREATE TABLE key_packages (
    key_package_id INTEGER PRIMARY KEY AUTOINCREMENT, user_id BLOB NOT NULL REFERENCES users,
    is_last_resort INTEGER NOT NULL, package_body INTEGER NOT NULL UNIQUE) STRICT;
CREATE INDEX key_packages_by_user ON key_packages (user_id, is_last_resort);

-- Encrypted non-message bodies, see conclave/store/bodies.py. Columns named `..._body` refer to them.
CREATE TABLE bodies (body_id INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB NOT NULL) STRICT;

-- `expiry_set_by`: the admin who has set message_expiry_seconds; null if no admin has, or that account was deleted.
-- `min_lifetime_seconds`: -1: inherit. `last_seq` to `commits_below`: the marks, which only rise (for the exception see
-- marks.py). `gone_below` is inclusive, `expired_before` exclusive. `archived_seq`: up to here messages are archived or
-- erased, and those in the hot store are copies. `commits_below`: up to here all members of that time have fetched the
-- commits. `self_destructs`: the number of self-destructing messages. `taken_back_count`: the number of withdrawn
-- messages that are not erased. `effective_expiry` to `policy_source`: the policy in force, updated with each change of
-- a setting, so that all code uses the same, see conclave/retention/policy.py. `effective_expiry`: seconds; 0:
-- delete-after-fetch; -1: none. `least_lifetime`: younger messages are not erased, in seconds. `hold_limit`: the age
-- limit of delete-after-fetch. `keeps_commits`: until all members have fetched them. `erases`: 0: nothing is erased.
CREATE TABLE groups (
    group_key INTEGER PRIMARY KEY AUTOINCREMENT, group_id BLOB NOT NULL UNIQUE, group_name TEXT NOT NULL UNIQUE,
    alias TEXT NOT NULL, visibility TEXT NOT NULL DEFAULT 'private' CHECK (visibility IN ('private', 'public')),
    message_expiry_seconds INTEGER NOT NULL DEFAULT -1, expiry_set_by BLOB REFERENCES users ON DELETE SET NULL,
    min_lifetime_seconds INTEGER NOT NULL DEFAULT -1, mls_group_id TEXT NOT NULL DEFAULT '', group_info_body INTEGER,
    created_at INTEGER NOT NULL, last_seq INTEGER NOT NULL DEFAULT 0, floor_seq INTEGER NOT NULL DEFAULT 0,
    gone_below INTEGER NOT NULL DEFAULT 0, expired_before INTEGER NOT NULL DEFAULT 0,
    archived_seq INTEGER NOT NULL DEFAULT 0, commits_below INTEGER NOT NULL DEFAULT 0,
    self_destructs INTEGER NOT NULL DEFAULT 0, taken_back_count INTEGER NOT NULL DEFAULT 0,
    effective_expiry INTEGER NOT NULL DEFAULT -1, least_lifetime INTEGER NOT NULL DEFAULT 0,
    hold_limit INTEGER NOT NULL DEFAULT -1, keeps_commits INTEGER NOT NULL DEFAULT 0, erases INTEGER NOT NULL DEFAULT 0,
    policy_source TEXT NOT NULL DEFAULT '') STRICT;
CREATE UNIQUE INDEX groups_by_group_info_body ON groups (group_info_body) WHERE group_info_body IS NOT NULL;
CREATE INDEX groups_by_policy ON groups (message_expiry_seconds, min_lifetime_seconds);
CREATE INDEX groups_by_expiry_setter ON groups (expiry_set_by) WHERE expiry_set_by IS NOT NULL;
-- Most servers keep no commits: this avoids reading each group.
CREATE INDEX groups_keeping_commits ON groups (group_key) WHERE keeps_commits;
-- Lists are read in parts by keyset pagination, so each has an index in its order. SQLite appends the table's key to the
-- columns of an index.
CREATE INDEX groups_public ON groups (group_name) WHERE visibility = 'public';
-- A deleted group: hidden at once, and erased by the next cleanup run that its policy allows.
CREATE TABLE tombstones (
    group_key INTEGER PRIMARY KEY, created_at INTEGER NOT NULL, group_id BLOB NOT NULL DEFAULT x'',
    message_expiry_seconds INTEGER NOT NULL DEFAULT -1, min_lifetime_seconds INTEGER NOT NULL DEFAULT -1,
    effective_expiry INTEGER NOT NULL DEFAULT -1, least_lifetime INTEGER NOT NULL DEFAULT 0,
    hold_limit INTEGER NOT NULL DEFAULT -1, keeps_commits INTEGER NOT NULL DEFAULT 0, erases INTEGER NOT NULL DEFAULT 0,
    policy_source TEXT NOT NULL DEFAULT '') STRICT;

-- A membership. A user who comes back gets a new one. `joining`: joined by /join, and has not sent the external commit
-- yet. `joined_after`: the group's last number at that time: timers are for later messages only. `read_up_to`:
-- inclusive, at least joined_after, and never lowered. `missed_from` and `missed_to`: the fetch gap, the first and last
-- number that a page omitted while the clock was in doubt; 0: none.
CREATE TABLE members (
    member_id INTEGER PRIMARY KEY AUTOINCREMENT, group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    user_id BLOB NOT NULL REFERENCES users, role TEXT NOT NULL CHECK (role IN ('member', 'admin')),
    joined_at INTEGER NOT NULL, joining INTEGER NOT NULL DEFAULT 0, watermark INTEGER NOT NULL DEFAULT 0,
    joined_after INTEGER NOT NULL DEFAULT 0, read_up_to INTEGER NOT NULL DEFAULT 0,
    missed_from INTEGER NOT NULL DEFAULT 0, missed_to INTEGER NOT NULL DEFAULT 0, UNIQUE (group_key, user_id)) STRICT;
CREATE INDEX members_by_user ON members (user_id); CREATE INDEX members_by_group ON members (group_key);
CREATE INDEX members_by_watermark ON members (group_key, watermark);
CREATE INDEX members_by_read ON members (group_key, read_up_to);
CREATE INDEX members_admins ON members (group_key) WHERE role = 'admin';
CREATE INDEX members_joining ON members (joined_at) WHERE joining;
CREATE TABLE bans (
    ban_key INTEGER PRIMARY KEY AUTOINCREMENT, group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    user_id BLOB NOT NULL REFERENCES users ON DELETE CASCADE, banned_by BLOB REFERENCES users ON DELETE SET NULL,
    banned_at INTEGER NOT NULL, UNIQUE (group_key, user_id)) STRICT;
CREATE INDEX bans_by_user ON bans (user_id); CREATE INDEX bans_by_admin ON bans (banned_by);
CREATE INDEX bans_by_group ON bans (group_key);
CREATE TABLE invites (
    invite_key INTEGER PRIMARY KEY AUTOINCREMENT, invite_id BLOB NOT NULL UNIQUE,
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE, invitee_id BLOB NOT NULL REFERENCES users,
    inviter_id BLOB NOT NULL REFERENCES users, created_at INTEGER NOT NULL, commit_body INTEGER NOT NULL UNIQUE,
    welcome_body INTEGER NOT NULL UNIQUE, group_info_body INTEGER NOT NULL UNIQUE, UNIQUE (group_key, invitee_id)
) STRICT;
CREATE INDEX invites_by_age ON invites (created_at); CREATE INDEX invites_by_invitee ON invites (invitee_id);
CREATE INDEX invites_by_inviter ON invites (inviter_id); CREATE INDEX invites_by_group ON invites (group_key);
CREATE TABLE welcomes (
    welcome_key INTEGER PRIMARY KEY AUTOINCREMENT, welcome_id BLOB NOT NULL UNIQUE,
    user_id BLOB NOT NULL REFERENCES users, group_key INTEGER NOT NULL REFERENCES groups,
    welcome_body INTEGER NOT NULL UNIQUE) STRICT;
CREATE INDEX welcomes_by_user ON welcomes (user_id); CREATE INDEX welcomes_by_group ON welcomes (group_key);

-- Messages and their encrypted bodies are clustered by group and number, so that a page is contiguous in each table. No
-- foreign key to groups: the messages of a deleted group stay until cleanup erases them.
CREATE TABLE messages (
    group_key INTEGER NOT NULL, sequence_num INTEGER NOT NULL, sender_id BLOB NOT NULL, is_commit INTEGER NOT NULL,
    created_at INTEGER NOT NULL, size INTEGER NOT NULL,
    message_id INTEGER NOT NULL AS (group_key << 40 | sequence_num),
    PRIMARY KEY (group_key, sequence_num)) STRICT, WITHOUT ROWID;
CREATE TABLE message_bodies (message_id INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE INDEX messages_by_age ON messages (group_key, created_at);
-- By sender within each group: see conclave/store/sender_index.py.
CREATE INDEX messages_by_sender ON messages (group_key, sender_id, is_commit, size);
-- Send ids, kept for a day, to recognise a send that is repeated after a lost response, even if the message has been
-- erased. No foreign keys, so that deleting a group or an account with many of them is fast.
CREATE TABLE send_ids (
    send_key INTEGER PRIMARY KEY, group_key INTEGER NOT NULL, user_id BLOB NOT NULL, send_id BLOB NOT NULL,
    sequence_num INTEGER NOT NULL, sent_at INTEGER NOT NULL, UNIQUE (user_id, group_key, send_id)) STRICT;
-- Messages that were taken back: redacted for all readers, until cleanup has erased them in both tiers (`erased`). The
-- row stays longer, for devices that were offline. `taken_by`: the sender, or an admin; empty after a
-- restore from the ledger. `told_to`: members up to this id were notified; null: all were.
CREATE TABLE taken_back (
    group_key INTEGER NOT NULL, sequence_num INTEGER NOT NULL, taken_at INTEGER NOT NULL, taken_by BLOB NOT NULL,
    erased INTEGER NOT NULL DEFAULT 0, told_to INTEGER DEFAULT 0, PRIMARY KEY (group_key, sequence_num)
) STRICT, WITHOUT ROWID;
CREATE INDEX taken_back_by_time ON taken_back (group_key, taken_at);
CREATE INDEX taken_back_stored ON taken_back (group_key, sequence_num) WHERE NOT erased;
CREATE INDEX taken_back_by_age ON taken_back (taken_at) WHERE erased;
CREATE INDEX taken_back_untold ON taken_back (group_key, sequence_num) WHERE told_to IS NOT NULL;

-- Self-destructing messages: each reader sees the message until the reader's timer ends, `seconds` after reading it.
-- `ended`: timers no longer start, since the message was too old under former settings.
CREATE TABLE self_destructing (
    group_key INTEGER NOT NULL, sequence_num INTEGER NOT NULL, seconds INTEGER NOT NULL,
    ended INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (group_key, sequence_num)) STRICT, WITHOUT ROWID;
-- The timers of members who have read such messages. A row is kept until the message is deleted and the member was
-- notified. `member_id`: no foreign key, since a former member may have many. `redact_at`: the first second at which
-- the message is redacted. `told`: the member was notified.
CREATE TABLE timers (
    timer_id INTEGER PRIMARY KEY, group_key INTEGER NOT NULL, sequence_num INTEGER NOT NULL, member_id INTEGER NOT NULL,
    seconds INTEGER NOT NULL, redact_at INTEGER NOT NULL, told INTEGER NOT NULL DEFAULT 0,
    UNIQUE (group_key, sequence_num, member_id)) STRICT;
CREATE INDEX timers_by_end ON timers (redact_at) WHERE NOT told;
CREATE INDEX timers_of_message ON timers (group_key, sequence_num, redact_at);
-- Deleted messages whose timers cleanup has not deleted yet.
CREATE TABLE ended_timers (
    group_key INTEGER NOT NULL, sequence_num INTEGER NOT NULL, PRIMARY KEY (group_key, sequence_num)
) STRICT, WITHOUT ROWID;
-- Redactions about which a user has not been notified yet. They are sent with the next stream that the user opens.
CREATE TABLE missed_redactions (
    missed_id INTEGER PRIMARY KEY AUTOINCREMENT, user_id BLOB NOT NULL REFERENCES users ON DELETE CASCADE,
    group_key INTEGER NOT NULL, sequence_num INTEGER NOT NULL) STRICT;
CREATE INDEX missed_redactions_by_user ON missed_redactions (user_id, missed_id);
-- Events of other processes, to be published by the server. `recipient_ids`: 16 bytes each. `event_fields`: JSON, with
-- ids in hexadecimal.
CREATE TABLE outbox (
    outbox_id INTEGER PRIMARY KEY AUTOINCREMENT, recipient_ids BLOB NOT NULL, event TEXT NOT NULL,
    event_fields TEXT NOT NULL) STRICT;
-- `outcome`: ok or failed. `counts`: other fields of the run, as JSON.
CREATE TABLE cleanup_runs (
    run_id INTEGER PRIMARY KEY AUTOINCREMENT, started_at INTEGER NOT NULL, finished_at INTEGER NOT NULL,
    engine TEXT NOT NULL, outcome TEXT NOT NULL, error TEXT NOT NULL DEFAULT '', counts TEXT NOT NULL) STRICT;

-- One row: the archive of this store. `archive_id`: identifies this store's moves in the table's log. `version`: readers
-- need this version of the table or a later one. `unerased`: files were replaced or dropped, and may still be on disk.
-- `relaid`: incremented before messages move back to the hot store, so that readers read again. `turn`: the number of
-- the last run that was to change the table; the table and the database must agree. `former_turn`: the table's turn
-- before that run. `reclaimed_at`: when space was last reclaimed.
CREATE TABLE archive_state (
    id INTEGER PRIMARY KEY CHECK (id = 1), archive_id TEXT NOT NULL, version INTEGER NOT NULL DEFAULT 0,
    unerased INTEGER NOT NULL DEFAULT 0, relaid INTEGER NOT NULL DEFAULT 0, turn INTEGER NOT NULL DEFAULT 0,
    former_turn INTEGER NOT NULL DEFAULT 0, reclaimed_at INTEGER NOT NULL DEFAULT 0, unsettled INTEGER NOT NULL DEFAULT 0)
    STRICT;
-- A batch of messages that move to the archive. It is stored first, so that its messages are fixed even after a crash.
-- `message_count`: as verified in the archive. `checksum`: XOR of the messages' checksums. `finished_at`: null while
-- unfinished.
CREATE TABLE archive_moves (
    batch INTEGER PRIMARY KEY AUTOINCREMENT, fixed_at INTEGER NOT NULL, message_count INTEGER NOT NULL DEFAULT 0,
    checksum INTEGER NOT NULL DEFAULT 0, finished_at INTEGER) STRICT;
CREATE INDEX archive_moves_under_way ON archive_moves (batch) WHERE finished_at IS NULL;
-- The messages of unfinished batches: those with the numbers first_seq to last_seq that were stored at that time.
-- `lifetime`: the group's effective expiry when the batch was fixed.
CREATE TABLE archive_move_ranges (
    batch INTEGER NOT NULL REFERENCES archive_moves ON DELETE CASCADE, group_key INTEGER NOT NULL,
    first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL, lifetime INTEGER NOT NULL, PRIMARY KEY (batch, group_key)
) STRICT, WITHOUT ROWID;
-- The index of the archive: the messages of a group in a partition (retention class and time span). No foreign key to
-- groups: cleanup erases the parts of deleted groups. `span`: its first second. `oldest` and `newest`: of created_at.
CREATE TABLE archive_parts (
    group_key INTEGER NOT NULL, lifetime INTEGER NOT NULL, span INTEGER NOT NULL, first_seq INTEGER NOT NULL,
    last_seq INTEGER NOT NULL, oldest INTEGER NOT NULL, newest INTEGER NOT NULL, message_count INTEGER NOT NULL,
    body_bytes INTEGER NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (group_key, span, lifetime)
) STRICT, WITHOUT ROWID;
CREATE INDEX archive_parts_by_part ON archive_parts (lifetime, span);
-- The senders of archived application messages, to find the messages of deleted accounts.
CREATE TABLE archive_senders (
    sender_id BLOB NOT NULL, group_key INTEGER NOT NULL, PRIMARY KEY (sender_id, group_key)) STRICT, WITHOUT ROWID;
CREATE INDEX archive_senders_by_group ON archive_senders (group_key);
-- Erased messages that still take space in the files of a partition. `since`: when the first was erased.
CREATE TABLE archive_dead (
    lifetime INTEGER NOT NULL, span INTEGER NOT NULL, messages INTEGER NOT NULL, since INTEGER NOT NULL,
    PRIMARY KEY (lifetime, span)) STRICT, WITHOUT ROWID;
-- Parts that were moved back to the hot store. Their messages take space in the files until the partition is reclaimed.
CREATE TABLE archive_returned (
    lifetime INTEGER NOT NULL, span INTEGER NOT NULL, group_key INTEGER NOT NULL, messages INTEGER NOT NULL,
    PRIMARY KEY (lifetime, span, group_key)) STRICT, WITHOUT ROWID;

-- One row, once a server has run: see docs/architecture/vault.md. `keys_id`: identifies the key file. `settled`: 0: the
-- file may have keys of messages that a restore removed. `serial`: its newest change on which the database relies.
CREATE TABLE key_state (
    id INTEGER PRIMARY KEY CHECK (id = 1), keys_id BLOB NOT NULL, settled INTEGER NOT NULL DEFAULT 1,
    serial INTEGER NOT NULL DEFAULT 0) STRICT;
-- The keys that the current or the next run has to destroy, written in the transactions that delete the messages.
CREATE TABLE key_erasures (
    group_id BLOB NOT NULL, first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL,
    PRIMARY KEY (group_id, first_seq, last_seq)) STRICT, WITHOUT ROWID;
-- A deleted group assigns no more numbers, and needs no keys for them.
CREATE TRIGGER tombstone_added AFTER INSERT ON tombstones BEGIN
    INSERT OR IGNORE INTO key_erasures (group_id, first_seq, last_seq)
    SELECT group_id, last_seq + 1, 9223372036854775807 FROM groups WHERE group_key = new.group_key;
END;
-- When a tombstone is removed, all remaining keys of the group are destroyed, including those of unassigned numbers.
CREATE TRIGGER tombstone_removed AFTER DELETE ON tombstones BEGIN
    INSERT OR IGNORE INTO key_erasures (group_id, first_seq, last_seq) VALUES (old.group_id, 0, 9223372036854775807);
END;

-- Legal holds on all messages of a group or of a user. Released holds are in the audit log only. No foreign key: a hold
-- stays when its subject is deleted. `subject_id`: group_id or user_id. `name`: at the time of the hold.
CREATE TABLE holds (
    hold_id INTEGER PRIMARY KEY AUTOINCREMENT, group_key INTEGER, user_id BLOB, subject_id BLOB NOT NULL,
    name TEXT NOT NULL, reason TEXT NOT NULL, added_by TEXT NOT NULL, added_at INTEGER NOT NULL,
    CHECK ((group_key IS NULL) != (user_id IS NULL))) STRICT;
CREATE INDEX holds_by_group ON holds (group_key) WHERE group_key IS NOT NULL;
CREATE INDEX holds_by_user ON holds (user_id) WHERE user_id IS NOT NULL;
-- The audit log. Entries stay when their subjects are deleted, so they have names. `actor`: "operator NAME" (a system
-- user), "admin NAME" (a user), or "server". `subject_id`: of a group or user; empty: the server. `details`: JSON.
CREATE TABLE audit (
    audit_id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL,
    subject_id BLOB NOT NULL DEFAULT x'', subject TEXT NOT NULL DEFAULT '', details TEXT NOT NULL DEFAULT '{}') STRICT;
CREATE INDEX audit_by_subject ON audit (subject_id, audit_id); CREATE INDEX audit_by_age ON audit (at);
-- The erasures of the current run: written in the transactions that erase, and turned into receipts at its end.
-- `last_seq` and `newest`: the greatest erased number and created_at.
CREATE TABLE erasures (
    group_key INTEGER NOT NULL, rule TEXT NOT NULL, messages INTEGER NOT NULL, last_seq INTEGER NOT NULL,
    newest INTEGER NOT NULL, group_id BLOB NOT NULL, PRIMARY KEY (group_key, rule)) STRICT, WITHOUT ROWID;
-- Receipts: the erasures of each run, by group and rule. A chain: `hash` is the SHA-256 of the previous receipt's hash
-- and of this receipt. Ids are consecutive.
CREATE TABLE receipts (
    receipt_id INTEGER PRIMARY KEY, at INTEGER NOT NULL, job TEXT NOT NULL, group_id BLOB NOT NULL, rule TEXT NOT NULL,
    messages INTEGER NOT NULL, last_seq INTEGER NOT NULL, newest INTEGER NOT NULL, hash BLOB NOT NULL) STRICT;
CREATE INDEX receipts_by_group ON receipts (group_id, receipt_id);
-- One row: the last receipt that was deleted. The chain continues from its hash.
CREATE TABLE receipts_anchor (
    id INTEGER PRIMARY KEY CHECK (id = 1), receipt_id INTEGER NOT NULL, hash BLOB NOT NULL) STRICT;
INSERT INTO receipts_anchor VALUES (1, 0, x'0000000000000000000000000000000000000000000000000000000000000000');

-- Invalidated cache entries, written by triggers in the process that makes the change. The server reads new rows before
-- it uses its caches, see conclave/store/invalidation.py. `touch`: consecutive; the newest row is never deleted.
-- `group_key`: a group whose marks, members or messages have changed. Without group and session: everything is invalid.
CREATE TABLE touches (touch INTEGER PRIMARY KEY, group_key INTEGER, session_id INTEGER) STRICT;
-- A server that is further behind drops all its caches.
CREATE TRIGGER touches_bounded AFTER INSERT ON touches BEGIN DELETE FROM touches WHERE touch <= new.touch - 4096; END;
CREATE TRIGGER group_changed
AFTER UPDATE OF effective_expiry, hold_limit, keeps_commits, gone_below, expired_before, archived_seq ON groups
WHEN (new.effective_expiry, new.hold_limit, new.keeps_commits, new.gone_below, new.expired_before, new.archived_seq)
    != (old.effective_expiry, old.hold_limit, old.keeps_commits, old.gone_below, old.expired_before, old.archived_seq)
BEGIN INSERT INTO touches (group_key) VALUES (new.group_key); END;
CREATE TRIGGER group_removed AFTER DELETE ON groups BEGIN INSERT INTO touches (group_key) VALUES (old.group_key); END;
CREATE TRIGGER member_added AFTER INSERT ON members BEGIN INSERT INTO touches (group_key) VALUES (new.group_key); END;
CREATE TRIGGER member_removed AFTER DELETE ON members BEGIN INSERT INTO touches (group_key) VALUES (old.group_key); END;
CREATE TRIGGER member_missed AFTER UPDATE OF missed_from ON members WHEN new.missed_from != old.missed_from
BEGIN INSERT INTO touches (group_key) VALUES (new.group_key); END;
CREATE TRIGGER message_taken_back AFTER INSERT ON taken_back
BEGIN INSERT INTO touches (group_key) VALUES (new.group_key); END;
CREATE TRIGGER session_removed AFTER DELETE ON sessions
BEGIN INSERT INTO touches (session_id) VALUES (old.session_id); END;
-- The messages of a deleted account are hidden in all groups.
CREATE TRIGGER account_removed AFTER INSERT ON user_tombstones
BEGIN INSERT INTO touches (group_key, session_id) VALUES (NULL, NULL); END;

-- Changes that are not yet in the purge ledger, a file outside this database: objects that were hidden, ended or deleted,
-- and that a restore of an older copy must not bring back. Triggers write them in the transaction of the change, in any
-- process: see conclave/store/ledger/. `change`: never reused; a copy of the database keeps the last number. `kind`: the
-- kind of the changed object, whose state is written to the ledger. `subject`: the key of its row. `since`: for read
-- receipts: the ledger has the reader's timers up to this number.
CREATE TABLE ledger_changes (
    change INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, subject ANY NOT NULL,
    since INTEGER NOT NULL DEFAULT 0, UNIQUE (kind, subject)) STRICT;
-- One row. `ledger_id`: identifies the ledger of this database. `claimed`: changes up to this one (inclusive) are
-- durable, and may be written. `written`: changes up to this one (inclusive) are written. `restored`: the number of the
-- last restore.
CREATE TABLE ledger_state (
    id INTEGER PRIMARY KEY CHECK (id = 1), ledger_id BLOB NOT NULL, claimed INTEGER NOT NULL DEFAULT 0,
    written INTEGER NOT NULL DEFAULT 0, restored INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO ledger_state (id, ledger_id) VALUES (1, randomblob(16));
-- Adds a change, replacing an older one of the same object. The plus sign removes the column affinity: without it SQLite
-- would scan all changes of the kind.
CREATE VIEW ledger_notes AS SELECT kind, subject FROM ledger_changes;
CREATE TRIGGER ledger_noted INSTEAD OF INSERT ON ledger_notes BEGIN
    DELETE FROM ledger_changes WHERE kind = new.kind AND subject = +new.subject;
    INSERT INTO ledger_changes (kind, subject) VALUES (new.kind, new.subject);
END;
-- Adds a read receipt, which starts timers. The lowest number whose timers the ledger may lack is kept in `since`.
CREATE VIEW ledger_reads AS SELECT subject, since FROM ledger_changes WHERE kind = 'read';
CREATE TRIGGER ledger_read INSTEAD OF INSERT ON ledger_reads BEGIN
    INSERT INTO ledger_changes (kind, subject, since) SELECT 'unread', new.subject, min(new.since,
        ifnull((SELECT since FROM ledger_changes WHERE kind = 'read' AND subject = +new.subject), new.since));
    DELETE FROM ledger_changes WHERE kind = 'read' AND subject = +new.subject;
    UPDATE ledger_changes SET kind = 'read' WHERE kind = 'unread' AND subject = +new.subject;
END;
CREATE TRIGGER ledger_group_changed AFTER UPDATE OF floor_seq, gone_below, expired_before, commits_below,
    message_expiry_seconds, min_lifetime_seconds, visibility ON groups
WHEN new.floor_seq != old.floor_seq OR new.gone_below != old.gone_below OR new.expired_before != old.expired_before
    OR new.commits_below != old.commits_below OR new.message_expiry_seconds != old.message_expiry_seconds
    OR new.min_lifetime_seconds != old.min_lifetime_seconds OR new.visibility != old.visibility
BEGIN INSERT INTO ledger_notes VALUES ('group', new.group_key); END;
CREATE TRIGGER ledger_group_removed AFTER DELETE ON groups
BEGIN INSERT INTO ledger_notes VALUES ('group', old.group_key); END;
-- If the whole group is deleted, changes of its parts need not be recorded.
CREATE TRIGGER ledger_member_removed AFTER DELETE ON members
WHEN EXISTS (SELECT 1 FROM groups WHERE group_key = old.group_key)
BEGIN INSERT INTO ledger_notes VALUES ('member', old.member_id); END;
CREATE TRIGGER ledger_role_changed AFTER UPDATE OF role ON members WHEN new.role != old.role
BEGIN INSERT INTO ledger_notes VALUES ('member', new.member_id); END;
CREATE TRIGGER ledger_member_read AFTER UPDATE OF read_up_to ON members
WHEN new.read_up_to > old.read_up_to
    AND EXISTS (SELECT 1 FROM groups WHERE group_key = new.group_key AND self_destructs)
BEGIN INSERT INTO ledger_reads VALUES (new.member_id, old.read_up_to); END;
CREATE TRIGGER ledger_timer_mended AFTER UPDATE OF redact_at ON timers
WHEN new.redact_at != old.redact_at AND EXISTS (SELECT 1 FROM members WHERE member_id = new.member_id)
BEGIN INSERT INTO ledger_reads VALUES (new.member_id, new.sequence_num - 1); END;
CREATE TRIGGER ledger_message_ended AFTER UPDATE OF ended ON self_destructing WHEN new.ended AND NOT old.ended
BEGIN INSERT INTO ledger_notes VALUES ('ended', new.group_key || ':' || new.sequence_num); END;
CREATE TRIGGER ledger_message_taken_back AFTER INSERT ON taken_back
BEGIN INSERT INTO ledger_notes VALUES ('taken_back', new.group_key || ':' || new.sequence_num); END;
CREATE TRIGGER ledger_banned AFTER INSERT ON bans BEGIN INSERT INTO ledger_notes VALUES ('ban', new.ban_key); END;
CREATE TRIGGER ledger_unbanned AFTER DELETE ON bans WHEN EXISTS (SELECT 1 FROM groups WHERE group_key = old.group_key)
BEGIN INSERT INTO ledger_notes VALUES ('ban', old.ban_key); END;
CREATE TRIGGER ledger_invite_ended AFTER DELETE ON invites
WHEN EXISTS (SELECT 1 FROM groups WHERE group_key = old.group_key)
BEGIN INSERT INTO ledger_notes VALUES ('invite', old.invite_key); END;
CREATE TRIGGER ledger_welcome_ended AFTER DELETE ON welcomes
WHEN EXISTS (SELECT 1 FROM groups WHERE group_key = old.group_key)
BEGIN INSERT INTO ledger_notes VALUES ('welcome', old.welcome_key); END;
CREATE TRIGGER ledger_account_removed AFTER DELETE ON users BEGIN
    DELETE FROM ledger_changes WHERE kind = 'password' AND subject = +old.user_id;
    INSERT INTO ledger_notes VALUES ('account', old.user_id);
END;
CREATE TRIGGER ledger_account_disabled AFTER UPDATE OF disabled ON users WHEN new.disabled != old.disabled
BEGIN INSERT INTO ledger_notes VALUES ('account', new.user_id); END;
CREATE TRIGGER ledger_password_changed AFTER UPDATE OF password_hash ON users
WHEN new.password_hash != old.password_hash BEGIN INSERT INTO ledger_notes VALUES ('password', new.user_id); END;
CREATE TRIGGER ledger_held AFTER INSERT ON holds BEGIN INSERT INTO ledger_notes VALUES ('hold', new.hold_id); END;
CREATE TRIGGER ledger_released AFTER DELETE ON holds BEGIN INSERT INTO ledger_notes VALUES ('hold', old.hold_id); END;
CREATE TRIGGER ledger_settings_changed AFTER UPDATE OF policy_settings ON server_state
WHEN new.policy_settings != old.policy_settings BEGIN INSERT INTO ledger_notes VALUES ('settings', 0); END;
