"""Compares the archive's folder with the archive's table: no file may be there that the table does not name.

What a file of the table has is the table's: a message that was erased from the archive went with its file, which was
replaced or dropped. So it is the files that count, and not what is in them.
"""

import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from conclave.archive.consistency import open_known
from conclave.archive.faults import one_line
from conclave.archive.files import DATA_FILES, LOG, DamagedLogError, is_recent, removal_times
from conclave.config.settings import Config
from conclave.proof.findings import Finding, Kind, ProofPart
from conclave.retention.durations import duration_text
from conclave.store.archive import moves
from conclave.store.archive.moves import ArchiveState
from conclave.store.engine import sqlite

_ENTRY = re.compile(r"(\d{20})\.(json|checkpoint(\.[\w-]+)*\.parquet)")
"""The names of the log's own files: entries and checkpoints, which have numbers of rows and names of files."""

_POINTER = "_last_checkpoint"


def examine(part: ProofPart, config: Config, now: float) -> None:
    """Look at every file in the archive's folder. The run lock is held.

    ``now``: Unix seconds. Raises StoreError, sqlite3.Error, and OSError if the folder cannot be read.
    """
    folder = config.archive_path
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        known, has_parts = moves.find_state(connection), moves.has_parts(connection)
    if known is None or not (known.version or has_parts):
        part.notes.append("nothing is archived")
        if folder.is_dir():
            _compare(part, folder, set(), -1, {}, 0.0)
        return
    found = _read_table(part, config, known)
    if found is not None:
        alive, version = found
        delay = config.archive.erase_delay
        removed = _removal_times(folder) if delay else {}
        recent = {name: at for name, at in removed.items() if is_recent(at, now, delay)}
        _compare(part, folder, alive, version, recent, now)
        if part.kept:
            part.kept.append(f"[archive] erase_delay is {duration_text(delay)}")


def _read_table(part: ProofPart, config: Config, known: ArchiveState) -> tuple[set[str], int] | None:
    """Return the names of the table's files, and its version; None if it cannot be read, which is a finding."""
    import pyarrow  # noqa: PLC0415 - where nothing is archived, it is not paid for
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    def read_state() -> ArchiveState:
        with closing(sqlite.connect(config.database, readonly=True)) as connection:
            return moves.find_state(connection) or known

    path = config.archive_path
    try:
        table, fault = open_known(path, read_state)
        if not fault:
            names = pyarrow.table(table.get_add_actions())["path"].to_pylist()
            return set(names), table.version()
    except (DeltaError, pyarrow.ArrowException, OSError) as error:
        fault = f"{path}: cannot be read: {one_line(error)}"
    part.add(Finding(Kind.UNREADABLE, str(path), fault))
    return None


def _removal_times(folder: Path) -> dict[str, float]:
    try:
        return removal_times(folder / LOG)
    except (OSError, DamagedLogError, KeyError, TypeError):  # half an entry: then no file is known to be kept
        return {}


def _compare(part: ProofPart, folder: Path, alive: set[str], version: int, kept: dict[str, float], now: float) -> None:
    """Look at every file. ``alive``: the table's. ``kept``: those that may stay for now, and since when."""
    data = {path.relative_to(folder).as_posix() for path in folder.glob(DATA_FILES)}
    sizes, oldest = 0, now
    for name, size in _files(folder):
        part.count("files")
        part.count("bytes", size)
        if name in alive or _is_of_log(name, version):
            continue
        if name in kept:
            sizes, oldest = sizes + size, min(oldest, kept[name])
            part.count("kept files")
        elif name in data:
            told = "a file that the table does not name: replaced, or left by a crash; the next run removes it"
            part.add(Finding(Kind.REPLACED_FILE, str(folder / name), told))
        else:
            told = "is neither the table's nor its log's; the next run removes what a crash has left, after an hour"
            part.add(Finding(Kind.UNNAMED_FILE, str(folder / name), told))
    if sizes:
        part.kept.append(
            f"{part.looked_at['kept files']:,} replaced files with {sizes:,} bytes, the oldest replaced"
            f" {duration_text(max(0, int(now - oldest)))} ago: erased messages may be readable in them"
        )


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield every file under a folder, or of what is there and no folder: its name within, and its size."""
    for parent, folders, names in os.walk(folder):
        linked = [each for each in folders if Path(parent, each).is_symlink()]
        for each in sorted([*names, *linked]):
            path = Path(parent, each)
            yield path.relative_to(folder).as_posix(), path.lstat().st_size


def _is_of_log(name: str, version: int) -> bool:
    """Tell whether a file is of the log of a table at ``version``."""
    parent, _, own = name.rpartition("/")
    if parent != LOG or version < 0:
        return False
    entry = _ENTRY.fullmatch(own)
    return own == _POINTER or bool(entry and int(entry[1]) <= version)
