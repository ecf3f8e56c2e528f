-- What a member missed: a page was served while the clock was in doubt, without what only the clock hid.
-- See conclave/store/missed.py.
ALTER TABLE members ADD COLUMN missed_from INTEGER NOT NULL DEFAULT 0;  -- the first number that was left out; 0: none
ALTER TABLE members ADD COLUMN missed_to INTEGER NOT NULL DEFAULT 0;    -- the last one

CREATE TRIGGER member_missed AFTER UPDATE OF missed_from ON members WHEN new.missed_from != old.missed_from BEGIN
    INSERT INTO touches (group_key) VALUES (new.group_key);
END;
