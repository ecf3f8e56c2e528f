"""The purge ledger: a file outside the store that records what a restored backup must not bring back."""
