"""Tells whether the archive's table and the database belong to the same moment.

They do not if only one of them was restored from a backup. Each run that changes the table begins a turn. The database
has the number of the turn before the table has it, and the table has it before the run changes anything else. So the
database is at most one turn ahead of the table, and never behind it.
"""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from conclave.archive.files import LOG, log_fault
from conclave.archive.layout import ID_PROPERTY
from conclave.store.archive.moves import ArchiveState

if TYPE_CHECKING:
    from deltalake import DeltaTable

_CHANCE_BITS = 32
"""A turn's number has 32 random bits, so that two databases restored from one backup count differently."""

TRIES = 3
"""Table and database are compared at most 3 times where no lock is held: a run may change both meanwhile."""


def next_turn(turn: int) -> int:
    """Return the number of the turn after ``turn``: greater, less than 2 ** 63, and with a random part."""
    return ((turn >> _CHANCE_BITS) + 1 << _CHANCE_BITS) | secrets.randbits(_CHANCE_BITS)


def turn_app(archive_id: str) -> str:
    """Return the name under which the table's log keeps its turn."""
    return f"{archive_id}.turn"


def turn_of(table: "DeltaTable", archive_id: str) -> int:
    """Return the number of the last turn that the table has; 0 if it has none."""
    return table.transaction_version(turn_app(archive_id)) or 0


def open_table(path: Path, version: int | None = None) -> "DeltaTable":
    """Open the table as of ``version``; None: the newest one.

    Raises what deltalake raises. Of a damaged entry of the log that has only what is wrong there, without the file's
    name; here it names the file, and what to do.
    """
    from deltalake import DeltaTable  # noqa: PLC0415 - a server without an archive does not pay for it
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    try:
        return DeltaTable(str(path), version=version)
    except DeltaError as error:
        if fault := log_fault(path / LOG):
            raise DeltaError(fault) from error
        raise


def open_known(path: Path, read_state: Callable[[], ArchiveState]) -> tuple["DeltaTable", str]:
    """Open the table; return it, and why it is not the one that the database knows, see ``find_fault``.

    ``read_state`` asks the database what it knows. Raises what deltalake and ``read_state`` raise.
    """
    for _ in range(TRIES):
        table = open_table(path)
        fault = find_fault(path, table, read_state())
        if not fault:
            break
    return table, fault


def find_fault(path: Path, table: "DeltaTable", state: ArchiveState) -> str:
    """Return in one line why ``table`` is not the one that the database knows; "" if it is.

    ``state`` was read after the table was opened. Without the run lock, a run may have changed both in between: then
    only what is found again and again is a fault.
    """
    if table.metadata().configuration.get(ID_PROPERTY) != state.archive_id:
        return f"{path}: is the archive of another database"
    turn, version = turn_of(table, state.archive_id), table.version()
    if turn in (state.turn, state.former_turn) and version >= state.version:
        return ""
    return not_of_one_time(path, is_newer=turn > state.turn)


def not_of_one_time(path: Path, *, is_newer: bool) -> str:
    """Return in one line what an operator is told if table and database do not belong together."""
    return (
        f"{path}: is {'newer' if is_newer else 'older'} than the database;"
        " if one of them was restored from a backup, restore both from the same one"
    )
