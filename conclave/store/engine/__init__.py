"""The engine of the hot store: connections, the one writer, group commit, the schema, what goes wrong."""
