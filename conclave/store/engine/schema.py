"""The schema of the database: makes a new one, and migrates an older one."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

from conclave.logs.setup import get_logger
from conclave.store.engine import path_check
from conclave.store.engine.faults import StoreError, store_error
from conclave.store.engine.sqlite import connect, write_transaction

log = get_logger(__name__)

Complete = Callable[[sqlite3.Connection], None]
"""Does what no SQL can to a database of a former version, in the transaction of the last migration."""

OLDEST_SQLITE = (3, 37, 0)
"""SQLite 3.37 is the first that knows STRICT tables."""


def migrations() -> list[tuple[int, str]]:
    """Return the migrations in order: schema version reached, SQL."""
    files = resources.files("conclave.store.engine.migrations").iterdir()
    return sorted((int(each.name[:4]), each.read_text()) for each in files if each.name.endswith(".sql"))


def prepare(path: Path, complete: Complete = lambda _: None) -> None:
    """Bring the database at ``path`` to this program's schema; make it if there is none.

    ``complete``: called if it is an older one. Raises StoreError if the file is no database of Conclave's, is one of a
    newer program, or cannot be written.
    """
    create(path)
    path_check.require_writable(path)
    with _one_line_errors(path), contextlib.closing(connect(path)) as connection:
        _migrate(connection, path, complete)


def create(path: Path) -> None:
    """Make the database at ``path`` if there is none. Raises StoreError.

    A crash leaves either a complete database or none at ``path``.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old: 3.37 or newer is needed")
    if path_check.is_taken(path):
        return
    new = path.with_name(f"{path.name}.new")
    with _one_line_errors(path):
        path_check.remove_unmade(new)
        new.touch(mode=0o600)
        with contextlib.closing(connect(new)) as connection:
            _migrate(connection, new, lambda _: None)
        new.rename(path)
    log.info("database_created", database=str(path))


def require_current(path: Path, *, writing: bool = False) -> None:
    """Raise StoreError unless the database at ``path`` has exactly this program's schema, and no restore is under way.

    ``writing``: the database must be writable too. Only the server creates and migrates a database: another process
    must not change the schema while a server runs. What a restore has put in place that did not end is removed by the
    next one, and with it what a command had changed there.
    """
    path_check.require_restored(path)
    if not path_check.is_taken(path):
        raise StoreError(f"{path}: no such database; `conclave serve` creates it")
    if writing:
        path_check.require_writable(path)
    with _one_line_errors(path), contextlib.closing(connect(path, readonly=not writing)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if writing:
            _require_wal(connection)
    newest = migrations()[-1][0]
    if version > newest:
        raise StoreError(_too_new(path, version, newest))
    if version < newest:
        raise StoreError(
            f"{path}: its schema version is {version}, this program's is {newest}: run `conclave serve` of this"
            " program on it first, or use the program that serves it"
        )


def is_current(connection: sqlite3.Connection, path: Path) -> bool:
    """Tell whether the database at ``path`` has this program's schema, not an older one that ``prepare`` migrates.

    Raises StoreError if ``prepare`` would refuse it. Nothing is changed.
    """
    newest = migrations()[-1][0]
    with _one_line_errors(path):
        return _known_version(connection, path, newest) == newest


@contextlib.contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise store_error(path, error) from error


def _require_wal(connection: sqlite3.Connection) -> None:
    """Turn the write-ahead log on: a copy made by `VACUUM INTO`, such as a backup, has it off."""
    connection.execute("PRAGMA journal_mode = WAL")


def _too_new(path: Path, version: int, newest: int) -> str:
    return f"{path}: its schema version is {version}, this program knows up to {newest}: use a newer Conclave"


def _known_version(connection: sqlite3.Connection, path: Path, newest: int) -> int:
    """Return the schema version of a database; 0 for a file without tables. Raises StoreError if it is unknown."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > newest:
        raise StoreError(_too_new(path, version, newest))
    if version == 0 and connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
        raise StoreError(f"{path}: is a database, but not one of Conclave's")
    return version


def _migrate(connection: sqlite3.Connection, path: Path, complete: Complete) -> None:
    steps = migrations()
    version = _known_version(connection, path, steps[-1][0])
    if version == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    _require_wal(connection)
    if version == steps[-1][0]:
        return
    with contextlib.ExitStack() as held:
        if version > 0:
            log.info("database_migrating", database=str(path), schema=version, to=steps[-1][0])
            held.enter_context(_sorts_beside(connection, path))
        left = [step for step in steps if step[0] > version]
        # One that is made is in no use, and gets its name later: its steps share a commit.
        for together in [[step] for step in left] if version else [left]:
            with write_transaction(connection):
                for number, script in together:
                    for statement in _statements(script):
                        connection.execute(statement)
                    if version > 0 and number == steps[-1][0]:
                        complete(connection)
                    connection.execute(f"PRAGMA user_version = {number}")


@contextlib.contextmanager
def _sorts_beside(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Have SQLite sort in files beside the database, which have no name, not in a folder that may be in memory.

    To make an index anew, all that it has is sorted: 140 MB for a million messages. That is too much for the memory of
    a small machine. Bodies are in no index. SQLite looks at SQLITE_TMPDIR only as it is loaded, so the folder is set by
    a pragma, for the process: no other connection has temporary files. Where SQLite was built without that pragma, or
    the name of the folder is no UTF-8, it sorts in memory.
    """
    folder = str(path.absolute().parent)
    with contextlib.suppress(UnicodeEncodeError):
        connection.execute("PRAGMA temp_store_directory = '{}'".format(folder.replace("'", "''")))
    if connection.execute("PRAGMA temp_store_directory").fetchone():
        connection.execute("PRAGMA temp_store = FILE")
    try:
        yield
    finally:
        connection.execute("PRAGMA temp_store_directory = ''")


def _statements(script: str) -> list[str]:
    """Split ``script`` into statements: executescript would commit the transaction of the migration."""
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements
