"""The database's records about the archive: the index, batches being moved, space to be reclaimed."""
