"""Looks for files that should not be there: in the work folder, in the data directory, and beside the database."""

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from conclave.config.settings import Config
from conclave.keys.replacing import COPYING, LOCKS, beside
from conclave.proof.findings import Finding, Kind, ProofPart
from conclave.store.ledger import book
from conclave.system import data_folder, ledger_mark, reserve

LOOKS, PAUSE_SECONDS = 20, 0.5
"""A file in the work folder is looked for 20 times, half a second apart: a worker that starts has some for a moment."""

CHUNK_BYTES = 1024 * 1024
"""A reserve is read 1 MiB at a time."""

_OF_DATABASE = ("", "-wal", "-shm", *data_folder.LOCKS, reserve.SUFFIX)
"""The suffixes of what may lie beside a database that is in use."""


def examine_work(part: ProofPart, config: Config) -> None:
    """Find files that a run has left in the work folder. The run lock is held, so no run is under way."""
    for _ in range(LOOKS):
        found = list(_files(config.work))
        if not found:
            break
        time.sleep(PAUSE_SECONDS)
    part.count("files", len(found))
    for path, size in found:
        told = f"a work file of {size:,} bytes, although no run is under way; the next run removes it"
        part.add(Finding(Kind.WORK_FILE, str(path), told))


def examine_others(part: ProofPart, config: Config) -> None:
    """Find files in the data directory and beside the database that are not Conclave's."""
    for path in _around(config):
        part.count("files and folders")
        told = _fault(path, config)
        if told:
            part.add(Finding(Kind.UNKNOWN_FILE, str(path), told))


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield what is under a folder and is no folder: path and size. What vanishes meanwhile is left out."""
    for parent, folders, names in os.walk(folder):
        for each in [*names, *(each for each in folders if Path(parent, each).is_symlink())]:
            path = Path(parent, each)
            try:
                yield path, path.lstat().st_size
            except FileNotFoundError:
                continue


def _around(config: Config) -> Iterator[Path]:
    """Yield what is in the data directory, and what beside the database seems to be of it."""
    seen = set()
    if config.data.is_dir():
        seen = set(config.data.iterdir())
    name = config.database.name
    for path in config.database.parent.iterdir():
        rest = path.name.removeprefix(name)
        if path.name.startswith(name) and not rest[:1].isalnum():
            seen.add(path)
    yield from sorted(seen)


def _fault(path: Path, config: Config) -> str:
    """Return in one line what is wrong with a file or folder; "" if it may be there."""
    reserves = {each.path for each in reserve.reserves(config)}
    expected = {config.database.with_name(config.database.name + suffix) for suffix in _OF_DATABASE}
    expected |= {
        config.data,
        config.data / data_folder.MARK,
        config.data / ledger_mark.NAME,
        *_ledger(config),
        *(beside(config.keys_path, suffix) for suffix in ("", *LOCKS)),
        *reserves,
    }
    folders = {config.work, config.archive_path, config.data, *config.archive_path.parents, *config.database.parents}
    try:
        found = path.lstat()
    except FileNotFoundError:
        return ""
    if path in folders and path.is_dir():  # perhaps by a link
        return ""
    if stat.S_ISDIR(found.st_mode):
        return "a folder that is not Conclave's: look what is in it, and remove it"
    if path not in expected or not stat.S_ISREG(found.st_mode):
        return f"is not Conclave's ({found.st_size:,} bytes): if it is a copy of the database, it has what was erased"
    if path.name.endswith(("-lock", COPYING)) and found.st_size:
        return f"a lock is empty, and this one has {found.st_size:,} bytes"
    if path in reserves and not _is_zero(path):
        return "a reserve holds nothing but zeros, and this one something else"
    return ""


def _ledger(config: Config) -> tuple[Path, ...]:
    path = config.ledger_path
    return path, config.ledger_lock, path.with_name(path.name + book.JOURNAL)


def _is_zero(path: Path) -> bool:
    zeros = bytes(CHUNK_BYTES)
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            if data != zeros[: len(data)]:
                return False
    return True
