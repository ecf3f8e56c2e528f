"""Welcomes: new members fetch them, and delete those that they have."""

from conclave.store.welcomes import accept, of_user as list_own

__all__ = ["accept", "list_own"]
