"""Welcomes: new members fetch them, and then delete them."""

from conclave.store.welcomes import accept, of_user as list_own

__all__ = ["accept", "list_own"]
