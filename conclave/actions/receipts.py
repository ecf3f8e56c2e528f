"""Lists the receipts of erased messages, and verifies their hash chain."""

import sqlite3

from conclave.actions import lookup
from conclave.store.resources import receipts
from conclave.store.resources.receipts import Chain, Receipt

__all__ = ["check_chain", "list_last"]


def list_last(connection: sqlite3.Connection, limit: int, group: str | None) -> list[Receipt] | None:
    """Return the last ``limit`` receipts, the newest first. ``group``: only its receipts, by id or name.

    Returns None if the group is unknown.
    """
    if group is None:
        return receipts.last(connection, limit)
    group_id = lookup.group_id(connection, group)
    return None if group_id is None else receipts.of_group(connection, group_id, limit)


def check_chain(connection: sqlite3.Connection, known: tuple[int, bytes] | None) -> tuple[Chain, bool]:
    """Verify the chain. ``known``: number and hash of an earlier receipt.

    Returns the chain, and whether the earlier receipt matches, or is older than the receipts that are kept.
    """
    chain = receipts.verify(connection)
    return chain, known is None or receipts.is_known(connection, *known)
