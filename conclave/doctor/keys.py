"""The keys of messages: whether there are any, whether the key file is the right one, and where copies of it are."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from conclave.config.settings import Config
from conclave.doctor.findings import Finding, note, ok, wrong
from conclave.keys import copying
from conclave.keys.file import KeyFileError
from conclave.keys.inspection import Inspection
from conclave.retention.durations import duration_text
from conclave.store import message_keys

OLD_SECONDS = 2 * 86_400
"""A newest copy that is older than two days is worth a note: a nightly backup renews it."""

_READ = "read docs/operations/backup.md#the-keys"


def keys(connection: sqlite3.Connection, config: Config, now: int) -> Iterator[Finding]:
    """Yield what the database and the key file say. ``now``: Unix seconds."""
    state = message_keys.state(connection)
    if state is None:
        yield ok("keys", "no server has run on this database yet: the first start makes its keys")
        return
    path = config.keys_path
    try:
        found = Inspection(path)
    except KeyFileError as error:
        yield wrong("keys", f"{error}: no message can be read", f"bring the key file back, or a copy: {_READ}")
        return
    if found.keys_id != state.keys_id:
        yield wrong("keys", f"{path}: has the keys of another database", f"bring the right one back: {_READ}")
        return
    count = message_keys.count(connection)
    yield ok("keys", f"{path}: {found.size:,} bytes; {count:,} messages are under keys")
    yield from _copies(connection, state.keys_id, now)


def _copies(connection: sqlite3.Connection, keys_id: bytes, now: int) -> Iterator[Finding]:
    copies = [each for each in message_keys.copies(connection) if copying.is_there(Path(each.path), keys_id)]
    if not copies:
        says = "there is no copy of the key file that the server knows of: if it is lost, all messages are"
        yield note("keys", says, "make a backup, or set keys.copies to files on other disks")
        return
    age = max(0, now - copies[0].made_at)
    says = f"{len(copies)} copies of the key file, the newest {copies[0].path} of {duration_text(age - age % 60)} ago"
    if age > OLD_SECONDS:
        yield note("keys", says, "make a backup, or set keys.copies")
    else:
        yield ok("keys", says)
