-- The policy in force, as the settings of the server and those of the group's admins give it: written by whatever
-- changes either, so that all who judge a message judge by the same. See conclave/retention/policy.py.
ALTER TABLE groups ADD COLUMN effective_expiry INTEGER NOT NULL DEFAULT -1;   -- seconds; 0: delete-after-fetch; -1: none
ALTER TABLE groups ADD COLUMN least_lifetime INTEGER NOT NULL DEFAULT 0;      -- nothing younger is erased, in seconds
ALTER TABLE groups ADD COLUMN hold_limit INTEGER NOT NULL DEFAULT -1;         -- the age limit of delete-after-fetch
ALTER TABLE groups ADD COLUMN keeps_commits INTEGER NOT NULL DEFAULT 0;       -- until every member has fetched them
ALTER TABLE groups ADD COLUMN erases INTEGER NOT NULL DEFAULT 0;              -- 0: nothing may be erased
ALTER TABLE groups ADD COLUMN policy_source TEXT NOT NULL DEFAULT '';         -- '': not written yet, by `state.complete`

ALTER TABLE tombstones ADD COLUMN effective_expiry INTEGER NOT NULL DEFAULT -1;
ALTER TABLE tombstones ADD COLUMN least_lifetime INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tombstones ADD COLUMN hold_limit INTEGER NOT NULL DEFAULT -1;
ALTER TABLE tombstones ADD COLUMN keeps_commits INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tombstones ADD COLUMN erases INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tombstones ADD COLUMN policy_source TEXT NOT NULL DEFAULT '';

-- Most servers keep no commits: it must not cost each group to find that out.
CREATE INDEX groups_keeping_commits ON groups (group_key) WHERE keeps_commits;

-- Servers remember what a policy hides.
DROP TRIGGER group_changed;
CREATE TRIGGER group_changed
AFTER UPDATE OF effective_expiry, hold_limit, keeps_commits, gone_below, expired_before, archived_seq ON groups
WHEN new.effective_expiry != old.effective_expiry OR new.hold_limit != old.hold_limit
    OR new.keeps_commits != old.keeps_commits OR new.gone_below != old.gone_below
    OR new.expired_before != old.expired_before OR new.archived_seq != old.archived_seq
BEGIN
    INSERT INTO touches (group_key) VALUES (new.group_key);
END;
