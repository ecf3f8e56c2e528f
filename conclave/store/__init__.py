"""The hot store: SQLite, one writer."""
