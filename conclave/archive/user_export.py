"""Reads the archived messages of one user for an export, in batches."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from conclave.archive import layout, scan
from conclave.archive.faults import ADVICE, UnreadableArchiveError, one_line
from conclave.archive.layout import DamagedMessageError
from conclave.archive.scan import batches, by_rows
from conclave.archive.snapshot import open_known
from conclave.keys.cipher import AlteredError
from conclave.keys.file import KeyFileError
from conclave.keys.store import KeyStore
from conclave.retention.stretches import Stretch
from conclave.store import bodies
from conclave.store.archive.moves import ArchiveState
from conclave.store.views.held_export import HeldGroup


class ExportedMessage(NamedTuple):
    """A message of the archive."""

    sequence_num: int
    created_at: int
    """Unix seconds."""
    is_commit: bool
    body: bytes


def read(
    path: Path, read_state: Callable[[], ArchiveState], stretch: Stretch, user_id: bytes, keys: KeyStore | None
) -> Iterator[ExportedMessage]:
    """Yield the messages of a user in ``stretch``, in any order. Raises UnreadableArchiveError.

    ``path``: the table's folder. ``read_state``: reads the state of the archive from the database. ``keys``: the keys
    of the messages; None if they are not open, so that no message can be read. No run may be active during the read.
    """
    for row in _rows(path, read_state, scan.of_sender(stretch, user_id)):
        if each := _decrypted(path, row, stretch.group_key, stretch.group_id, user_id, keys):
            yield each


def read_held(
    path: Path,
    read_state: Callable[[], ArchiveState],
    groups: Mapping[int, HeldGroup],
    user_id: bytes,
    keys: KeyStore | None,
) -> Iterator[tuple[bytes, ExportedMessage]]:
    """Yield all messages of a user with their group ids, in any order, including hidden ones.

    Skips messages that moved back into the hot store. ``groups``: all groups by key. Other parameters: see ``read``.
    """
    for row in _rows(path, read_state, scan.of_sender_anywhere(user_id)):
        group = groups.get(row["group_key"])
        if group is None or (not group.is_deleted and row["sequence_num"] > group.archived_seq):
            continue
        if each := _decrypted(path, row, group.group_key, group.group_id, user_id, keys):
            yield group.group_id, each


def _rows(path: Path, read_state: Callable[[], ArchiveState], sql: str) -> Iterator[dict[str, Any]]:
    import pyarrow  # noqa: PLC0415 - loaded only by commands that read the archive
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    try:
        table, fault = open_known(path, read_state)
        if fault:
            raise UnreadableArchiveError(fault)
        for batch in batches(by_rows(table), sql):
            yield from batch.to_pylist()
    except (DeltaError, pyarrow.ArrowException, OSError) as error:
        raise UnreadableArchiveError(f"{path}: {one_line(error)}") from error


def _decrypted(
    path: Path,
    row: dict[str, Any],
    group_key: int,
    group_id: bytes,
    user_id: bytes,
    keys: KeyStore | None,
) -> ExportedMessage | None:
    """Return a decrypted message; None if it was erased. Raises UnreadableArchiveError."""
    each = ExportedMessage(row["sequence_num"], row["created_at"], row["is_commit"], row["mls_message"])
    try:
        layout.verify_checksum(
            *(group_key, each.sequence_num, user_id, each.created_at, each.body, row["checksum"]),
            is_commit=each.is_commit,
        )
        body = bodies.decrypt_archived(keys, group_id, [each.sequence_num], [each.body])[0]
    except (AlteredError, KeyFileError) as error:
        raise UnreadableArchiveError(f"{path}: {error}") from error
    except DamagedMessageError as error:
        raise UnreadableArchiveError(f"{path}: message {error} of a group is damaged{ADVICE}") from error
    return None if body is None else each._replace(body=body)
