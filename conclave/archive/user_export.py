"""Reads from the archive what one user has sent to a group, for the export: a batch at a time."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from conclave.archive import layout, scan
from conclave.archive.faults import ADVICE, one_line
from conclave.archive.layout import DamagedError
from conclave.archive.scan import batches, by_rows
from conclave.archive.snapshot import open_known
from conclave.keys.cipher import AlteredError
from conclave.keys.file import KeyFileError
from conclave.keys.store import KeyStore
from conclave.retention.stretches import Stretch
from conclave.store import bodies
from conclave.store.archive.moves import ArchiveState
from conclave.store.views.held_export import HeldGroup


class UnreadableError(Exception):
    """The archive cannot be read. The message is one line for the operator."""


class Archived(NamedTuple):
    """A message of the archive."""

    sequence_num: int
    created_at: int
    """Unix seconds."""
    is_commit: bool
    body: bytes


def read(
    path: Path, read_state: Callable[[], ArchiveState], found: Stretch, user_id: bytes, keys: KeyStore | None
) -> Iterator[Archived]:
    """Yield the messages of a user in ``found``, in any order. Raises UnreadableError.

    ``path``: the table's folder. ``read_state``: asks the database what it knows of the table. ``keys``: those of the
    messages, if they are under some. No run may take place meanwhile.
    """
    for row in _rows(path, read_state, scan.of_sender(found, user_id)):
        if each := _opened(path, row, found.group_key, found.group_id, user_id, keys):
            yield each


def read_held(
    path: Path,
    read_state: Callable[[], ArchiveState],
    places: Mapping[int, HeldGroup],
    user_id: bytes,
    keys: KeyStore | None,
) -> Iterator[tuple[bytes, Archived]]:
    """Yield all messages of a user with the ids of their groups, in any order, hidden ones too.

    ``places``: all groups, by their keys. The rest is as for ``read``. What the hot store has again is left to it.
    """
    for row in _rows(path, read_state, scan.of_sender_anywhere(user_id)):
        place = places.get(row["group_key"])
        if place is None or (place.is_living and row["sequence_num"] > place.archived_seq):
            continue
        if each := _opened(path, row, place.group_key, place.group_id, user_id, keys):
            yield place.group_id, each


def _rows(path: Path, read_state: Callable[[], ArchiveState], asked: str) -> Iterator[dict[str, Any]]:
    import pyarrow  # noqa: PLC0415 - other commands do not pay for it
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    try:
        table, fault = open_known(path, read_state)
        if fault:
            raise UnreadableError(fault)
        for batch in batches(by_rows(table), asked):
            yield from batch.to_pylist()
    except (DeltaError, pyarrow.ArrowException, OSError) as error:
        raise UnreadableError(f"{path}: {one_line(error)}") from error


def _opened(
    path: Path,
    row: dict[str, Any],
    group_key: int,
    group_id: bytes,
    user_id: bytes,
    keys: KeyStore | None,
) -> Archived | None:
    """Return a message as it was sent; None if it was erased. Raises UnreadableError."""
    each = Archived(row["sequence_num"], row["created_at"], row["is_commit"], row["mls_message"])
    try:
        layout.require_sound(
            *(group_key, each.sequence_num, user_id, each.created_at, each.body, row["checksum"]),
            is_commit=each.is_commit,
        )
        body = bodies.decrypt_archived(keys, group_id, [each.sequence_num], [each.body])[0]
    except (AlteredError, KeyFileError) as error:
        raise UnreadableError(f"{path}: {error}") from error
    except DamagedError as error:
        raise UnreadableError(f"{path}: message {error} of a group is not as it was archived{ADVICE}") from error
    return None if body is None else each._replace(body=body)
