"""Makes verified, consistent backups of database and archive; restores them, and replays later changes."""
