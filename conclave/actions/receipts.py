"""Receipts of what cleanup runs have erased: listing them, and checking their chain."""

import sqlite3

from conclave.actions import lookup
from conclave.store.resources import receipts
from conclave.store.resources.receipts import Chain, Receipt

__all__ = ["check_chain", "list_last"]


def list_last(connection: sqlite3.Connection, limit: int, group: str | None) -> list[Receipt] | None:
    """List the last ``limit`` receipts, the newest first. ``group``: only those of this one, by id or name.

    None if there is no such group.
    """
    if group is None:
        return receipts.last(connection, limit)
    group_id = lookup.group_id(connection, group)
    return None if group_id is None else receipts.of_group(connection, group_id, limit)


def check_chain(connection: sqlite3.Connection, known: tuple[int, bytes] | None) -> tuple[Chain, bool]:
    """Compute the chain again. ``known``: number and hash of an earlier receipt.

    Returns what was found, and whether the earlier receipt is there with that hash, or as old as those no longer kept.
    """
    chain = receipts.verify(connection)
    return chain, known is None or receipts.is_known(connection, *known)
