-- Tokens that operators hand out, so that people can register where registration is not open to all.
CREATE TABLE registration_tokens (
    token_id INTEGER PRIMARY KEY AUTOINCREMENT,
    token_hash BLOB NOT NULL UNIQUE,            -- SHA-256; the token itself is nowhere
    most_uses INTEGER NOT NULL,
    uses INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    lifetime INTEGER NOT NULL,                  -- seconds; it is dead from created_at + lifetime on
    added_by TEXT NOT NULL,                     -- an operator, as in the audit log
    note TEXT NOT NULL
) STRICT;
