"""Whether the archive's table and the database are of one time: after a backup only one of them may have come back.

Each run that changes the table begins a turn. The database knows its number before the table does, and the table has it
before any other change of that run. So between the two there is no more than one turn, and that is the database's.
"""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from conclave.archive.layout import ID_PROPERTY
from conclave.store.archive.moves import ArchiveState

if TYPE_CHECKING:
    from deltalake import DeltaTable

_CHANCE_BITS = 32
"""Of a turn's number, so that two databases from one backup do not count alike."""


TRIES = 3
"""How often table and database are compared where no lock is held: a run may change both in between."""


def next_turn(turn: int) -> int:
    """Return the number of the turn after ``turn``: greater, less than 2 ** 63, and not to be guessed."""
    return ((turn >> _CHANCE_BITS) + 1 << _CHANCE_BITS) | secrets.randbits(_CHANCE_BITS)


def turn_app(archive_id: str) -> str:
    """Return the name under which the table's log has its turn."""
    return f"{archive_id}.turn"


def turn_of(table: "DeltaTable", archive_id: str) -> int:
    """Return the number of the last turn that the table has; 0 if it has none."""
    return table.transaction_version(turn_app(archive_id)) or 0


def open_known(path: Path, read_state: Callable[[], ArchiveState]) -> tuple["DeltaTable", str]:
    """Open the table, and return it and why it is not the one that the database knows; see ``find_fault``.

    Raises what deltalake raises, and what ``read_state`` does.
    """
    from deltalake import DeltaTable  # noqa: PLC0415 - a server without an archive does not pay for it

    for _ in range(TRIES):
        table = DeltaTable(str(path))
        fault = find_fault(path, table, read_state())
        if not fault:
            break
    return table, fault


def find_fault(path: Path, table: "DeltaTable", state: ArchiveState) -> str:
    """Return why ``table`` is not the one that the database knows, in one line; nothing if it is.

    ``state`` was read after the table was opened. If it was without the run lock, a run may have changed both since:
    only what is found again and again is a fault.
    """
    if table.metadata().configuration.get(ID_PROPERTY) != state.archive_id:
        return f"{path}: is the archive of another database"
    turn, version = turn_of(table, state.archive_id), table.version()
    if turn in (state.turn, state.former_turn) and version >= state.version:
        # Before turns were counted, this alone told: after a run that came to its end all of the table was known.
        is_newer = not state.turn and not state.unerased and version > state.version
        return not_of_one_time(path, is_newer=True) if is_newer else ""
    return not_of_one_time(path, is_newer=turn > state.turn)


def not_of_one_time(path: Path, *, is_newer: bool) -> str:
    """Return what an operator is told, in one line."""
    return (
        f"{path}: is {'newer' if is_newer else 'older'} than the database;"
        " if one of them was restored from a backup, restore both from the same one"
    )
