"""The purge ledger: a file outside the store with the changes that a restored backup must not undo."""
