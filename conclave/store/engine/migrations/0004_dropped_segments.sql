-- A segment whose bodies nobody refers to any more, erased or not: what is left of it goes with the next compaction.
ALTER TABLE body_segments ADD COLUMN dropped INTEGER NOT NULL DEFAULT 0;
