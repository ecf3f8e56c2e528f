"""The rules by which rows go, as reports name them."""

EXPIRED = "expired"


FETCHED = "fetched"


DELETED_GROUP = "deleted_group"


DELETED_ACCOUNT = "deleted_account"


SESSIONS = "sessions"


INVITES = "invites"


RULES = (EXPIRED, FETCHED, DELETED_GROUP, DELETED_ACCOUNT, SESSIONS, INVITES)
