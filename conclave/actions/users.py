"""Looking up accounts."""

from conclave.store.users import by_id, by_name, own as me

__all__ = ["by_id", "by_name", "me"]
