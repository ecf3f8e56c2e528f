"""The purge ledger: a file outside the store that tells what a restored backup must not bring back."""
