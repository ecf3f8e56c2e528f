"""Creates the database, and migrates older schemas."""

import contextlib
import sqlite3
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from conclave.logs.setup import get_logger
from conclave.store.engine import path_check
from conclave.store.engine.faults import StoreError, store_error
from conclave.store.engine.sqlite import connect, write_transaction

log = get_logger(__name__)

APPLICATION_ID = 0x436C4462
"""The application_id in the header of a Conclave database: "ClDb"."""

OLDEST_SQLITE = (3, 37, 0)
"""SQLite 3.37 introduced STRICT tables."""


def migrations() -> list[tuple[int, str]]:
    """Return the steps to the current schema, in order: version, SQL. The first creates a new database."""
    package = resources.files("conclave.store.engine")
    files = (each for each in package.joinpath("migrations").iterdir() if each.name.endswith(".sql"))
    steps = sorted((int(each.name[:4]), each.read_text()) for each in files)
    return [(1, package.joinpath("schema.sql").read_text()), *steps]


def prepare(path: Path) -> None:
    """Create the database at ``path``, or migrate it to the current schema.

    Raises StoreError if it is not a Conclave database, is of a newer version, or cannot be written.
    """
    create(path)
    path_check.require_writable(path)
    with _one_line_errors(path), contextlib.closing(connect(path)) as connection:
        _migrate(connection, path)


def create(path: Path) -> None:
    """Create the database at ``path`` if it is missing. Raises StoreError.

    Atomic: a crash leaves either a complete database or none at ``path``.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old: 3.37 or newer is needed")
    if path_check.is_taken(path):
        return
    new = path.with_name(f"{path.name}.new")
    with _one_line_errors(path):
        path_check.remove_incomplete(new)
        new.touch(mode=0o600)
        with contextlib.closing(connect(new)) as connection:
            _migrate(connection, new)
        new.rename(path)
    log.info("database_created", database=str(path))


def require_current(path: Path, *, writing: bool = False) -> None:
    """Raise StoreError unless the database at ``path`` has the current schema, and no restore is incomplete.

    ``writing``: the database must be writable too. Only the server creates and migrates a database: other processes
    must not change the schema while a server runs. The database of an incomplete restore will be replaced when the
    restore is repeated, so changes made by a command would be lost.
    """
    path_check.require_restored(path)
    if not path_check.is_taken(path):
        raise StoreError(f"{path}: no such database; `conclave serve` creates it")
    if writing:
        path_check.require_writable(path)
    with _one_line_errors(path), contextlib.closing(connect(path, readonly=not writing)) as connection:
        version = _known_version(connection, path)
        if writing:
            _require_wal(connection)
    newest = migrations()[-1][0]
    if version < newest:
        raise StoreError(
            f"{path}: its schema version is {version}, this program's is {newest}: run `conclave serve` of this"
            " program on it first, or use the program that serves it"
        )


def is_current(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the database at ``path`` has the current schema, not an older one that ``prepare`` migrates.

    Raises StoreError if ``prepare`` would reject it. Changes nothing.
    """
    with _one_line_errors(path):
        return _known_version(connection, path) == migrations()[-1][0]


@contextlib.contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise store_error(path, error) from error


def _require_wal(connection: sqlite3.Connection) -> None:
    """Enable the write-ahead log. Copies made by `VACUUM INTO`, such as backups, do not have it enabled."""
    connection.execute("PRAGMA journal_mode = WAL")


def _known_version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema version of a database; 0 for a file without tables. Raises StoreError for unknown versions."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        if version or connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
            raise StoreError(f"{path}: is a database of schema version {version}, but not one of Conclave's")
        return 0
    newest = migrations()[-1][0]
    if version > newest:
        versions = f"its schema version is {version}, this program knows up to {newest}"
        raise StoreError(f"{path}: {versions}: use a newer Conclave")
    return version


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    version, steps = _known_version(connection, path), migrations()
    if version == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    _require_wal(connection)
    for number, script in steps[version:]:
        if version > 0:
            log.info("database_migrating", database=str(path), schema=number - 1, to=number)
        with write_transaction(connection):
            for statement in _statements(script):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")


def _statements(script: str) -> list[str]:
    """Split ``script`` into statements, since executescript would commit the migration's transaction."""
    statements, current = [], ""
    for part in script.rstrip().removesuffix(";").split(";"):
        current += f"{part};"
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements
