-- What the setting `self_destruct_max_age` has hidden for good before it was changed: self-destructing messages that
-- were created before this Unix second, exclusive. Their rows say so too (`ended`), but go with them; this is for the
-- ledger, so that a backup that has them still does not show them by a greater age.
ALTER TABLE server_state ADD COLUMN too_old_before INTEGER NOT NULL DEFAULT 0;

-- Accepting the clock brings back timers that a fast one has set: what the ledger knows of them is not so any more.
CREATE TRIGGER ledger_timer_mended AFTER UPDATE OF redact_at ON timers
WHEN new.redact_at != old.redact_at AND EXISTS (SELECT 1 FROM members WHERE member_id = new.member_id)
BEGIN
    INSERT INTO ledger_changes (kind, subject, since)
    SELECT 'unread', new.member_id,
        min(new.sequence_num - 1, ifnull((SELECT since FROM ledger_changes
            WHERE kind = 'read' AND subject = +new.member_id), new.sequence_num - 1));
    DELETE FROM ledger_changes WHERE kind = 'read' AND subject = +new.member_id;
    UPDATE ledger_changes SET kind = 'read' WHERE kind = 'unread' AND subject = +new.member_id;
END;
