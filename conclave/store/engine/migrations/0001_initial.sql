-- Ids (BLOB) are 16-byte UUIDs, times are Unix seconds. AUTOINCREMENT where a number must never come back:
-- what is still filed under it must not pass to a successor.

-- One row: what the server knows of its own last run.
CREATE TABLE server_state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    policy_settings TEXT NOT NULL,              -- PolicySettings that the marks are settled under, as JSON
    last_alive INTEGER NOT NULL,
    stopped_cleanly INTEGER NOT NULL,
    -- The clock guard: the last reading that was right, and what has been found wrong since.
    clock_wall INTEGER NOT NULL,
    clock_since_boot INTEGER NOT NULL,
    clock_boot_id TEXT NOT NULL,
    clock_accepted INTEGER NOT NULL DEFAULT 0,  -- messages stored up to here were there when an operator accepted it
    clock_fault TEXT NOT NULL DEFAULT ''        -- lasts until an operator accepts the clock
) STRICT;

CREATE TABLE users (
    user_id BLOB PRIMARY KEY,
    username TEXT NOT NULL UNIQUE,
    password_hash TEXT NOT NULL,
    alias TEXT NOT NULL,
    signing_key_fingerprint TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE sessions (
    session_id INTEGER PRIMARY KEY AUTOINCREMENT,
    token_hash BLOB NOT NULL UNIQUE,            -- SHA-256; the token itself is nowhere
    user_id BLOB NOT NULL REFERENCES users ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    last_used_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL                 -- first second at which it is dead
) STRICT;
CREATE INDEX sessions_by_user ON sessions (user_id);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);

-- Bodies lie in the tables body_segment_N, made as needed: see conclave/store/bodies.py.
-- A body's id holds its segment: id >> 32.
CREATE TABLE body_segments (
    segment INTEGER PRIMARY KEY AUTOINCREMENT,
    bodies INTEGER NOT NULL DEFAULT 0,          -- ever stored
    total_bytes INTEGER NOT NULL DEFAULT 0,     -- ever stored
    live_bytes INTEGER NOT NULL DEFAULT 0,      -- not erased
    sealed INTEGER NOT NULL DEFAULT 0           -- nothing is added any more
) STRICT;

CREATE TABLE groups (
    group_key INTEGER PRIMARY KEY AUTOINCREMENT,
    group_id BLOB NOT NULL UNIQUE,
    group_name TEXT NOT NULL UNIQUE,
    alias TEXT NOT NULL,
    visibility TEXT NOT NULL DEFAULT 'private' CHECK (visibility IN ('private', 'public')),
    message_expiry_seconds INTEGER NOT NULL DEFAULT -1,
    mls_group_id TEXT NOT NULL DEFAULT '',
    group_info_body INTEGER,
    created_at INTEGER NOT NULL,
    -- The four marks; each only rises (marks.py has the one exception).
    last_seq INTEGER NOT NULL DEFAULT 0,
    floor_seq INTEGER NOT NULL DEFAULT 0,
    gone_below INTEGER NOT NULL DEFAULT 0,      -- inclusive
    expired_before INTEGER NOT NULL DEFAULT 0   -- exclusive
) STRICT;
CREATE UNIQUE INDEX groups_by_group_info_body ON groups (group_info_body) WHERE group_info_body IS NOT NULL;

CREATE TABLE members (
    member_id INTEGER PRIMARY KEY AUTOINCREMENT,   -- one membership: who comes back gets a new one
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    user_id BLOB NOT NULL REFERENCES users,
    role TEXT NOT NULL CHECK (role IN ('member', 'admin')),
    joined_at INTEGER NOT NULL,
    joining INTEGER NOT NULL DEFAULT 0,            -- came by /join and has not sent its external commit yet
    watermark INTEGER NOT NULL DEFAULT 0,
    UNIQUE (group_key, user_id)
) STRICT;
CREATE INDEX members_by_user ON members (user_id);
CREATE INDEX members_by_watermark ON members (group_key, watermark);

-- No reference to groups: the messages of a deleted group wait here for cleanup.
CREATE TABLE messages (
    message_id INTEGER PRIMARY KEY,             -- the id of its body
    group_key INTEGER NOT NULL,
    sequence_num INTEGER NOT NULL,
    sender_id BLOB NOT NULL,
    is_commit INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    UNIQUE (group_key, sequence_num)
) STRICT;
CREATE INDEX messages_by_age ON messages (group_key, created_at);

CREATE TABLE invites (
    invite_key INTEGER PRIMARY KEY AUTOINCREMENT,
    invite_id BLOB NOT NULL UNIQUE,
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    invitee_id BLOB NOT NULL REFERENCES users,
    inviter_id BLOB NOT NULL REFERENCES users,
    created_at INTEGER NOT NULL,
    commit_body INTEGER NOT NULL UNIQUE,
    welcome_body INTEGER NOT NULL UNIQUE,
    group_info_body INTEGER NOT NULL UNIQUE,
    UNIQUE (group_key, invitee_id)
) STRICT;
CREATE INDEX invites_by_age ON invites (created_at);

-- A deleted group: hidden at once, erased by the next cleanup run.
CREATE TABLE tombstones (
    group_key INTEGER PRIMARY KEY,
    created_at INTEGER NOT NULL
) STRICT;

-- What cleanup did that somebody must hear of: written with it, handed on by the server once.
CREATE TABLE outbox (
    outbox_id INTEGER PRIMARY KEY AUTOINCREMENT,
    recipient_id BLOB NOT NULL,
    event TEXT NOT NULL,                        -- the event's name
    event_ids TEXT NOT NULL                     -- its fields, ids in hexadecimal, as JSON
) STRICT;

CREATE TABLE cleanup_runs (
    run_id INTEGER PRIMARY KEY AUTOINCREMENT,
    started_at INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    engine TEXT NOT NULL,
    outcome TEXT NOT NULL,                      -- ok, or failed
    error TEXT NOT NULL DEFAULT '',
    counts TEXT NOT NULL                        -- what went by which rule, as JSON
) STRICT;
