-- Key packages, welcomes, bans, sessions that their user can name, accounts that are disabled or deleted.

ALTER TABLE users ADD COLUMN disabled INTEGER NOT NULL DEFAULT 0;

-- What its user calls a session; session_id stays inside.
ALTER TABLE sessions ADD COLUMN public_id BLOB NOT NULL DEFAULT x'';
UPDATE sessions SET public_id = randomblob(16);
CREATE UNIQUE INDEX sessions_by_public_id ON sessions (public_id);

CREATE TABLE key_packages (
    key_package_id INTEGER PRIMARY KEY AUTOINCREMENT,   -- in the order in which they were uploaded
    user_id BLOB NOT NULL REFERENCES users,
    is_last_resort INTEGER NOT NULL,
    package_body INTEGER NOT NULL UNIQUE
) STRICT;
CREATE INDEX key_packages_by_user ON key_packages (user_id, is_last_resort);

CREATE TABLE welcomes (
    welcome_key INTEGER PRIMARY KEY AUTOINCREMENT,
    welcome_id BLOB NOT NULL UNIQUE,
    user_id BLOB NOT NULL REFERENCES users,
    group_key INTEGER NOT NULL REFERENCES groups,
    welcome_body INTEGER NOT NULL UNIQUE
) STRICT;
CREATE INDEX welcomes_by_user ON welcomes (user_id);
CREATE INDEX welcomes_by_group ON welcomes (group_key);

CREATE INDEX invites_by_invitee ON invites (invitee_id);
CREATE INDEX invites_by_inviter ON invites (inviter_id);

CREATE TABLE bans (
    ban_key INTEGER PRIMARY KEY AUTOINCREMENT,
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    user_id BLOB NOT NULL REFERENCES users ON DELETE CASCADE,
    banned_by BLOB REFERENCES users ON DELETE SET NULL, -- outlives the account of the admin
    banned_at INTEGER NOT NULL,
    UNIQUE (group_key, user_id)
) STRICT;
CREATE INDEX bans_by_user ON bans (user_id);
CREATE INDEX bans_by_admin ON bans (banned_by);

-- A deleted account: its application messages are hidden at once, and erased by the next cleanup run.
-- Its commits stay, since the others cannot go on without them.
CREATE TABLE user_tombstones (
    user_id BLOB PRIMARY KEY,
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX messages_by_sender ON messages (sender_id) WHERE NOT is_commit;

-- One row for all who hear the same: their ids, 16 bytes each, one after the other.
ALTER TABLE outbox RENAME COLUMN recipient_id TO recipient_ids;
ALTER TABLE outbox RENAME COLUMN event_ids TO event_fields;
