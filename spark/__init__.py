"""The cleanup pipeline: deletes messages, and moves messages to the archive."""
