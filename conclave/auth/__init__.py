"""Authentication: passwords, tokens, the use of sessions, and rate limits."""
