-- The time that never goes back with a small step of the wall clock, and how often an operator accepted that clock.
ALTER TABLE server_state ADD COLUMN acted_until INTEGER NOT NULL DEFAULT 0;         -- the greatest that was acted on
ALTER TABLE server_state ADD COLUMN clock_acceptances INTEGER NOT NULL DEFAULT 0;
UPDATE server_state SET acted_until = last_alive;
-- Accepting the clock brings back what lies ahead of it, so that nothing is left to be overlooked.
ALTER TABLE server_state DROP COLUMN clock_accepted;
-- Raised before messages of the archive go to other parts of it: who has looked for them before looks again.
ALTER TABLE archive_state ADD COLUMN relaid INTEGER NOT NULL DEFAULT 0;
