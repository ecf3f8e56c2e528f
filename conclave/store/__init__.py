"""The hot store: a SQLite database, with one writer in the server."""
