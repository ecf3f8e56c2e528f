"""The rules by which rows are deleted, as reports name them."""

EXPIRED = "expired"
"""Messages that have expired by age, or by the mark ``expired_before``."""

FETCHED = "fetched"
"""Messages at or below the mark ``gone_below``: by delete-after-fetch."""

REDACTED = "redacted"
"""Self-destructing messages that have come to their end for everybody who was to read them."""

DELETED_GROUP = "deleted_group"
"""Messages of deleted groups."""

DELETED_ACCOUNT = "deleted_account"
"""Messages of deleted accounts, without commits."""

SESSIONS = "sessions"
"""Sessions that have expired."""

INVITES = "invites"
"""Invites that are too old."""

RULES = (EXPIRED, FETCHED, REDACTED, DELETED_GROUP, DELETED_ACCOUNT, SESSIONS, INVITES)
