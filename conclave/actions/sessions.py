"""A user's sessions: listing and ending them."""

from conclave.store.sessions import of_user as list_own, revoke

__all__ = ["list_own", "revoke"]
