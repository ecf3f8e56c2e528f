"""The local history of a client: a SQLite file that keeps messages no longer than the policy in force allows."""
