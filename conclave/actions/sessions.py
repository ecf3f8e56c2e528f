"""A user's sessions: seen and ended."""

from conclave.store.sessions import exists, of_user as list_own, revoke

__all__ = ["exists", "list_own", "revoke"]
