-- The admin who has set message_expiry_seconds as it is: members are told with what it hides. Null: nobody has set it,
-- the account is gone, or a restore has found it in no ledger.
ALTER TABLE groups ADD COLUMN expiry_set_by BLOB REFERENCES users ON DELETE SET NULL;
CREATE INDEX groups_by_expiry_setter ON groups (expiry_set_by) WHERE expiry_set_by IS NOT NULL;
