"""Proves that nothing that was erased is readable in any file of the store, while the server runs or not.

What is looked at, in this order:

1. The write-ahead log is emptied, as a run does at its end. It may hold pages as they were before something was erased.
   What the server writes there from then on are pages as they are from then on: nothing that was dead before can be in
   them, since the pages themselves are examined next. What is erased while this goes on may have been in the log, so
   it is emptied once more in the end.
2. The pages of the body segments, and the free pages, at moments when the database's file is exactly what SQLite reads,
   see ``frozen``. So nothing is suspected that is only being written.
3. The files: the archive's, those of runs, and unknown ones.
4. The key file, if there is one: its nodes lead to keys of what lives, and to no others.

No run is under way meanwhile: the run lock is held. What is due but not erased yet is not dead here: a dry run counts
it. No body is ever told, only where it is.

The process opens the database's file for the lock, before any connection, and closes it after the last one. It opens
no other file that belongs to SQLite: see ``conclave/system/locks.py``.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial

from conclave.archive import numbers
from conclave.clock import Clock
from conclave.config.settings import Config
from conclave.proof import archive_files, bodies, folders, free_pages, keys
from conclave.proof.findings import Finding, Kind, ProofPart
from conclave.proof.frozen import NotFrozenError, frozen
from conclave.proof.keys import Copies
from conclave.proof.pages import MalformedError
from conclave.store.engine import schema, sqlite
from conclave.store.engine.faults import StoreError, file_size
from conclave.system import locks
from conclave.system.locks import DatabaseLock

EmptyLog = Callable[[sqlite3.Connection], bool]
"""Empties the write-ahead log as a run does; tells whether that succeeded."""


class ProofError(Exception):
    """The store cannot be examined. The message is one line for the operator."""


def verify(
    config: Config, clock: Clock, empty_log: EmptyLog, wait: locks.Wait, copies: Copies | None = None
) -> list[ProofPart]:
    """Examine the store, and return what was looked at and found.

    ``copies``: backups that are examined too. ``wait`` is called before a wait for a run that is under way. Raises
    ProofError.
    """
    try:
        schema.require_current(config.database, writing=True)
        with closing(DatabaseLock(config.database, locks.CLEANUP)) as lock, lock.hold(wait):
            found = _examine(config, clock, empty_log, lock.descriptors[1])
            if copies:
                found.append(part := ProofPart("copies"))
                keys.examine_copies(part, config, copies)
            return found
    except numbers.UnreadableError as error:
        raise ProofError(str(error)) from error
    except MalformedError as error:
        raise ProofError(f"{config.database}: {error}") from error
    except (StoreError, sqlite3.Error) as error:
        raise ProofError(str(error)) from error
    except OSError as error:
        raise ProofError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error


def _examine(config: Config, clock: Clock, empty_log: EmptyLog, descriptor: int) -> list[ProofPart]:
    path = config.database
    log, segments, references, free, archive, work, others, of_keys = map(
        ProofPart,
        (
            *("write-ahead log", "body segments", "references", "free pages", "archive", "work folder"),
            *("other files", "key file"),
        ),
    )
    hold = partial(frozen, path, descriptor)
    _empty_log(log, config, empty_log)
    for part, examine in ((segments, bodies.examine_segments), (free, free_pages.examine)):
        try:
            examine(part, path, hold)
        except NotFrozenError:
            told = "cannot be examined: a long read kept the write-ahead log from being copied; end it, and try again"
            part.add(Finding(Kind.LOG_BUSY, str(path), told))
    bodies.examine_references(references, path)
    archive_files.examine(archive, config, clock.now())
    folders.examine_work(work, config)
    folders.examine_others(others, config)
    keys.examine(of_keys, config)
    _empty_log(log, config, empty_log)
    return [segments, references, free, log, archive, work, others, of_keys]


def _empty_log(part: ProofPart, config: Config, empty_log: EmptyLog) -> None:
    path = config.database.with_name(config.database.name + "-wal")
    part.count("bytes emptied", file_size(path))
    with closing(sqlite.connect(config.database)) as connection:
        is_empty = empty_log(connection)
    part.count("times")
    if not is_empty:
        told = (
            "could not be emptied: a long read kept it open; it may hold what was erased. End the read, and try again"
        )
        part.add(Finding(Kind.LOG_BUSY, str(path), told))
