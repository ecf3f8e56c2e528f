-- Which runs have changed the archive: by the last of them the table and this database are told to be of one time.
ALTER TABLE archive_state ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;        -- of the last run that was about to
ALTER TABLE archive_state ADD COLUMN former_turn INTEGER NOT NULL DEFAULT 0; -- what the table had before that run
