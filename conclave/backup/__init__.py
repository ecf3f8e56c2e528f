"""Backups: one consistent copy of database and archive, checked; and a restore that settles what has changed since."""
