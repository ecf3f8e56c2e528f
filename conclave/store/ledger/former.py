"""Reads a ledger of the former form: lines of JSON, each with a checksum over itself and the line before.

Lines were appended and synced. One that a power failure has torn is the last one, and was not acknowledged.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson

UNFINISHED = ".new"
"""The suffix of a file that is to take the place of one of the former form."""

Line = dict[str, Any] | None
"""What a line says; None if it is damaged."""

_HEAD = b'{"ledger":"'

_SUM = b',"sum":"'


@contextmanager
def found(path: Path) -> Iterator[list[Line] | None]:
    """Read the file, and keep other processes from doing so meanwhile; None if it is not of the former form.

    Raises OSError.
    """
    with path.open("rb") as file:
        if not _is_former(file):
            yield None
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        # Another process may have taken it over meanwhile.
        yield _whole(file) if os.path.samestat(os.fstat(file.fileno()), path.stat()) else None


def _is_former(file: IO[bytes]) -> bool:
    begin = file.read(len(_HEAD))
    return bool(begin) and _HEAD.startswith(begin)


def _whole(file: IO[bytes]) -> list[Line]:
    """Return all lines but what a power failure has left of the last append: a part of a line, or nothing."""
    file.seek(0)
    lines, former, ends = list[Line](), b"", True
    for line in file:
        lines.append(_value(line, former))
        former = line.rpartition(_SUM)[2].rstrip(b'"}\n')
        ends = line.endswith(b"\n")
    if lines and lines[-1] is None and not ends:
        lines.pop()
    return lines


def _value(line: bytes, former: bytes) -> Line:
    text, mark, rest = line.rpartition(_SUM)
    text += b"}"
    if not mark or rest != hashlib.sha256(former + text).hexdigest()[:16].encode() + b'"}\n':
        return None
    value: dict[str, Any] = orjson.loads(text)
    return value
