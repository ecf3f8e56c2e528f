-- What the setting `self_destruct_max_age` has hidden for good before it was changed: self-destructing messages that
-- were created before this Unix second, exclusive. Their rows say so too (`ended`), but go with them; this is for the
-- ledger, so that a backup that has them still does not show them by a greater age.
ALTER TABLE server_state ADD COLUMN too_old_before INTEGER NOT NULL DEFAULT 0;
