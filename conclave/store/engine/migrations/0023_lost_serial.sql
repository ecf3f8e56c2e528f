-- The change of the key file by which keys were last lost: a file without it, as an older copy, has them again.
ALTER TABLE key_state ADD COLUMN lost_serial INTEGER NOT NULL DEFAULT 0;
