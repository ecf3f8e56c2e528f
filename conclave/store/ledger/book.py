"""The ledger's file: lines of JSON, each with a checksum over itself and the line before. Appended, synced, compacted.

A line that a power failure has torn is the last one, and was not acknowledged: the next append cuts it off. Any other
line whose checksum is wrong is damaged. So is the file if it lacks what the database knows to be in it.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from conclave.failpoints import reach
from conclave.logs import get_logger
from conclave.store.faults import StoreError

log = get_logger(__name__)

TAIL_BYTES = 64 * 1024
"""At first the last 64 KiB are read to find the last line."""

HEAD_BYTES = 1024
"""The first line has less than 1 KiB."""

COMPACTED_BYTES = 1024 * 1024
"""A file below 1 MiB is not compacted."""

RESTORE, ALIVE, SETTINGS, READ = "restore", "alive", "settings", "read"

_LASTING = {RESTORE, ALIVE, SETTINGS}
"""Of these kinds the last entry is kept, however old it is."""

UNFINISHED = ".new"
"""The suffix of a file that a compaction has not finished. The next one begins it again."""

_SUM = b',"sum":"'
_HEAD = b'{"ledger":"'


class LedgerError(StoreError):
    """The ledger cannot be read or written, or is not as it should be."""


class Entry(NamedTuple):
    """What the ledger says of one thing.

    ``change``: the number of its last change, as the database counts them. ``at``: when it was written, Unix seconds.
    ``subject``: the key of its row, or an id in hexadecimal. ``state``: None if it is gone.
    """

    change: int
    at: int
    kind: str
    subject: int | str
    state: dict[str, Any] | None


@dataclass(frozen=True)
class Contents:
    """What a ledger is found to be.

    ``complete_after``: it tells of every change with a greater number. ``last_change``: the greatest number in it.
    ``restored``: the number of the last restore. ``damaged``: the numbers of damaged lines, from 1. ``altered_end``:
    that of the first of the last lines, if these are whole and yet not as they were written; 0 if not. Whether they
    were ever acknowledged is known to the database alone. ``kinds``: what it tells of. ``until``: when its newest
    line of a database in use was written, Unix seconds.
    """

    ledger_id: str
    complete_after: int
    last_change: int
    restored: int
    damaged: tuple[int, ...]
    altered_end: int
    kinds: frozenset[str]
    until: int


def append(path: Path, ledger_id: str, written: int, entries: Sequence[Entry]) -> int:
    """Add entries, in the order of their changes, and sync the file. Makes the file if there is none.

    ``written``: the number of the last change that the file is known to have. What it has already is left out. Returns
    the greatest number that it had: if the database has not come so far, somebody else's changes are in the file, and
    these entries may not be. Raises LedgerError; then the file is as before.
    """
    with _told(path), _locked(path) as file:
        former, last = _end(path, file, ledger_id, written)
        data = b""
        if not former:
            line, former = _line({"ledger": ledger_id, "complete_after": written}, former)
            data += line
        for entry in entries:
            if entry.change >= last:
                line, former = _line(entry._asdict(), former)
                data += line
        size = file.seek(0, os.SEEK_END)
        try:
            _write(file, data)
            reach("ledger.written")
            os.fsync(file.fileno())
            if not size:
                _sync_folder(path)
        except BaseException:
            os.ftruncate(file.fileno(), size)
            raise
        reach("ledger.synced")
        if written and not size:
            log.warning("ledger_begun", ledger=str(path))
    return last


def _write(file: IO[bytes], data: bytes) -> None:
    while data:
        data = data[file.write(data) :]


def tip(path: Path) -> tuple[str, int] | None:
    """Return whose ledger a file is, and the greatest number in it, without reading it all; None if there is none.

    Raises LedgerError.
    """
    if not _is_there(path):
        return None
    with _told(path), path.open("rb") as file:
        last = _last(path, file)
        return (_head(path, file), last.change) if last else None


def look(path: Path) -> Contents | None:
    """Read the whole file, and tell what it is; None if there is none. Raises LedgerError."""
    if not _is_there(path):
        return None
    restored = last = complete_after = until = 0
    head: dict[str, Any] | None = None
    bad: list[int] = []
    kinds: set[str] = set()
    torn_from = 1
    with _told(path), path.open("rb") as file:
        for number, value in _lines(file):
            if value is None:
                bad.append(number)
                continue
            torn_from = number + 1
            if "ledger" in value:
                head = value
                complete_after = max(complete_after, value["complete_after"])
                continue
            last = max(last, value["change"])
            kinds.add(value["kind"])
            if value["kind"] == RESTORE:
                restored = max(restored, value["state"]["number"])
                complete_after = max(complete_after, value["state"].get("complete_after", 0))
            else:
                until = value["at"]
        if head is None:
            if _last(path, file):
                raise LedgerError(f"{path}: its first line is damaged: {_BEGIN_ANEW}")
            return None
        # An append that a power failure has cut leaves its begin: whole lines, and then at most a part of one.
        most_torn = 0 if _ends_a_line(file) else 1
    damaged = tuple(number for number in bad if number < torn_from)
    altered_end = torn_from if len(bad) - len(damaged) > most_torn else 0
    return Contents(head["ledger"], complete_after, last, restored, damaged, altered_end, frozenset(kinds), until)


def _ends_a_line(file: IO[bytes]) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def entries(path: Path, after: int) -> Iterator[Entry]:
    """Yield the sound entries of changes with numbers greater than ``after``, in their order."""
    if _is_there(path):
        with _told(path), path.open("rb") as file:
            for _, value in _lines(file):
                if value and "ledger" not in value and value["change"] > after:
                    yield Entry(**{name: value[name] for name in Entry._fields})


def require_sound(path: Path, ledger_id: str, written: int) -> None:
    """Read the whole file; raise LedgerError if it is damaged, another database's, or lacks what it is known to have.

    If there is none, the next append begins one, and says so if there had been one.
    """
    found = look(path)
    if found is None:
        return
    _require_own(path, found.ledger_id, ledger_id)
    if found.damaged:
        raise LedgerError(f"{path}: line {found.damaged[0]} is damaged: {_BEGIN_ANEW}")
    if found.last_change < written:
        raise LedgerError(_cut(path))
    if found.altered_end:
        raise LedgerError(f"{path}: line {found.altered_end} is damaged: {_BEGIN_ANEW}")


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells the file from one that replaces it; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def require_writable(path: Path) -> None:
    """Raise LedgerError if the file could not be written, as far as can be seen without writing."""
    folder = path.parent
    with _told(path):
        if not folder.is_dir():
            raise LedgerError(f"{path}: there is no folder {folder}; is its disk mounted?")
        if path.is_dir() or path.is_symlink():
            raise LedgerError(f"{path}: is not a file")
        for each in (path, folder) if path.exists() else (folder,):
            if not os.access(each, os.W_OK):
                raise LedgerError(f"{each}: cannot be written to; is it another user's, or its disk read-only?")


def compact(path: Path, before: int, reads_before: int, now: int) -> None:
    """Rewrite the file with the last entry of each thing, if it is large. Safe to stop anywhere.

    ``before``: older entries go, Unix seconds, exclusive. ``reads_before``: the same for what was read, since those
    messages are hidden by their age, once all of its timers have ended by the second ``now``: a reader sees a message
    until then, however old it is. Raises LedgerError, also for a damaged file.
    """
    if not _is_there(path) or path.stat().st_size < COMPACTED_BYTES:
        return
    with _told(path), _locked(path), path.open("rb") as file:
        contents = look(path)
        if contents is None or contents.damaged or contents.altered_end:
            raise LedgerError(f"{path}: is damaged, and was left as it is: {_BEGIN_ANEW}")
        new = path.with_name(path.name + UNFINISHED)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(new, flags, 0o600), "wb") as target:
            _rewrite(file, target, contents, before, lambda value: _is_read_out(value, reads_before, now))
            target.flush()
            reach("ledger.rewritten")
            os.fsync(target.fileno())
        new.rename(path)
        reach("ledger.replaced")
        _sync_folder(path)


def _rewrite(
    file: IO[bytes], target: IO[bytes], contents: Contents, before: int, is_read_out: Callable[[dict[str, Any]], bool]
) -> None:
    newest: dict[tuple[str, int | str], int] = {}
    complete_after = contents.complete_after
    for _, value in _lines(file):
        if value and "kind" in value:
            newest[value["kind"], value["subject"]] = value["change"]
            if _is_over(value, before):
                complete_after = max(complete_after, value["change"])
    line, former = _line({"ledger": contents.ledger_id, "complete_after": complete_after}, b"")
    target.write(line)
    for _, value in _lines(file):
        if not value or "kind" not in value:
            continue
        is_read = value["kind"] == READ
        is_last = is_read or newest[value["kind"], value["subject"]] == value["change"]
        # The very last one stays: the database knows its number.
        is_over = _is_over(value, before) or (is_read and is_read_out(value))
        if (is_last and not is_over) or value["change"] == contents.last_change:
            line, former = _line({name: value[name] for name in Entry._fields}, former)
            target.write(line)


def _is_over(value: dict[str, Any], before: int) -> bool:
    return bool(value["at"] < before and value["kind"] not in _LASTING)


def _is_read_out(value: dict[str, Any], before: int, now: int) -> bool:
    ends = (value["state"] or {}).get("ends", ())
    return bool(value["at"] < before and all(redact_at <= now for _, redact_at in ends))


def _line(values: dict[str, Any], former: bytes) -> tuple[bytes, bytes]:
    """Return a line, and its checksum, which goes into the next one."""
    text = orjson.dumps(values)
    digest = _digest(former, text)
    return text[:-1] + _SUM + digest + b'"}\n', digest


def _digest(former: bytes, text: bytes) -> bytes:
    return hashlib.sha256(former + text).hexdigest()[:16].encode()


def _lines(file: IO[bytes]) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield each line with its number; None for one that is torn or damaged."""
    file.seek(0)
    former = b""
    for number, line in enumerate(file, 1):
        yield number, _value(line, former)
        former = _stored_sum(line)


def _stored_sum(line: bytes) -> bytes:
    return line.rpartition(_SUM)[2].rstrip(b'"}\n')


def _value(line: bytes, former: bytes) -> dict[str, Any] | None:
    text, mark, rest = line.rpartition(_SUM)
    text += b"}"
    if not mark or rest != _digest(former, text) + b'"}\n':
        return None
    value: dict[str, Any] = orjson.loads(text)
    return value


class _Last(NamedTuple):
    """The last sound line. ``end``: where it ends. ``change``: the greatest number that the file has told of."""

    stored_sum: bytes
    change: int
    end: int


def _last(path: Path, file: IO[bytes]) -> _Last | None:
    """Find the last sound line; None if the file is empty, or torn in its first line. Raises LedgerError."""
    size = file.seek(0, os.SEEK_END)
    length = TAIL_BYTES
    while size:
        begin = max(0, size - length)
        file.seek(begin)
        data = file.read()
        lines = data.splitlines(keepends=True)
        first = 0 if begin == 0 else 2  # the first may lack its begin, and the second the checksum of the first
        for place in range(len(lines) - 1, first - 1, -1):
            value = _value(lines[place], _stored_sum(lines[place - 1]) if place else b"")
            if value is not None:
                change = value.get("change", value.get("complete_after", 0))
                return _Last(_stored_sum(lines[place]), change, size - sum(map(len, lines[place + 1 :])))
        if begin == 0:
            if not (_HEAD.startswith(data[: len(_HEAD)]) or data.startswith(_HEAD) or not data.strip(b"\0")):
                raise LedgerError(f"{path}: is not a ledger")
            if len(lines) > 1:
                raise LedgerError(f"{path}: its first line is damaged: {_BEGIN_ANEW}")
            return None
        length *= 8
    return None


def _end(path: Path, file: IO[bytes], ledger_id: str, written: int) -> tuple[bytes, int]:
    """Cut a torn end off; return the checksum and the change of the last line: nothing and 0 for a new file."""
    last = _last(path, file)
    if last is None:
        os.ftruncate(file.fileno(), 0)
        return b"", 0
    _require_own(path, _head(path, file), ledger_id)
    if last.change < written:
        raise LedgerError(_cut(path))
    os.ftruncate(file.fileno(), last.end)
    return last.stored_sum, last.change


def _head(path: Path, file: IO[bytes]) -> str:
    """Return the id in the first line. Raises LedgerError."""
    file.seek(0)
    head = _value(file.read(HEAD_BYTES).partition(b"\n")[0] + b"\n", b"")
    if head is None or "ledger" not in head:
        raise LedgerError(f"{path}: its first line is damaged: {_BEGIN_ANEW}")
    return str(head["ledger"])


def _require_own(path: Path, found: str, ledger_id: str) -> None:
    if found != ledger_id:
        raise LedgerError(f"{path}: is the ledger of another database: {_BEGIN_ANEW}")


_BEGIN_ANEW = "move it away, so that a new one begins, and make a new backup: older ones are not covered by it"


def _cut(path: Path) -> str:
    return f"{path}: lacks its end, or was replaced by an older one: {_BEGIN_ANEW}"


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """Open the file for reading and writing, make it if there is none, and keep others from changing it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_in_place(path, descriptor):  # it may have been compacted, by another process, while this one waited
                yield file
                return


def _is_in_place(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _is_there(path: Path) -> bool:
    with _told(path):
        return path.exists()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Raise what the system says as a LedgerError of one line."""
    try:
        yield
    except OSError as error:
        raise LedgerError(f"{path}: {error.strerror or error}") from error


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
