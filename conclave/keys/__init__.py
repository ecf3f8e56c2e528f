"""Encryption keys, one for each message. Erasing a key makes all copies of its message unreadable.

This package does not depend on the database.
"""
