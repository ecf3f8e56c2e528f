"""The mark in the data directory: how far the database had come that was served there.

A start goes by it where the ledger is away: it cannot tell otherwise that the database was replaced by an older copy.
"""

import os
from contextlib import suppress
from pathlib import Path

NAME = ".ledger-mark"


def note(data: Path, ledger_id: str, number: int) -> None:
    """Note that changes up to ``number`` are in the database. It has to be durable there already.

    The file is written over in place: that needs no room on a full disk. One that cannot be written stays as it is, and
    one that a power failure has torn is none: both only know less.
    """
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(data / NAME, flags, 0o600)
        try:
            os.pwrite(descriptor, f"{ledger_id} {number:020}\n".encode("ascii"), 0)
        finally:
            os.close(descriptor)


def noted(data: Path, ledger_id: str) -> int:
    """Return what was noted last for the database with this ledger; 0 if nothing was."""
    try:
        whose, number = (data / NAME).read_text(encoding="ascii").split()
        return int(number) if whose == ledger_id else 0
    except (OSError, ValueError):
        return 0
