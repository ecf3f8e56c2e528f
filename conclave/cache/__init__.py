"""Caches for frequent requests: sessions, groups, and pages of messages. Cached values are always current."""
