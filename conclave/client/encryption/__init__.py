"""End-to-end encryption of an account: its keys and groups in a file, updated in the server's order."""
