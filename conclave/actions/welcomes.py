"""Welcomes: fetched by new members, and gone once they have them."""

from conclave.store.welcomes import accept, of_user as list_own

__all__ = ["accept", "list_own"]
