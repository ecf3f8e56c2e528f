"""The database engine of the hot store: connections, the writer, group commit, the schema, errors."""
