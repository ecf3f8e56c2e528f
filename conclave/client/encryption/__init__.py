"""End-to-end encryption of an account: its keys and groups in a file, and the order of the server."""
