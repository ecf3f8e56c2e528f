"""Tells whether anybody has committed, by a look at memory that all who use the database share.

SQLite keeps an index of the write-ahead log in a file that every process maps, ``DATABASE-shm``. Its header is in there
twice, each time with counters and checksums that every commit changes, before the commit is over (see "WAL-Index
Header" in SQLite's description of the format). So if both copies are as they were, nobody has committed since. If they
are not, or cannot be read, that says nothing: then the database itself is asked.
"""

import mmap
from contextlib import suppress
from pathlib import Path

_HEADER_BYTES = 2 * 48
"""The header has 48 bytes, and there are two copies of it at the beginning of the file."""


class WalIndex:
    """The header of the index, of a database that stays open while this is used."""

    def __init__(self, database: Path) -> None:
        """``database``: open in this process, and read or written at least once, so that its index is there."""
        self._map: mmap.mmap | None = None
        with suppress(OSError, ValueError), database.with_name(f"{database.name}-shm").open("rb") as file:
            self._map = mmap.mmap(file.fileno(), _HEADER_BYTES, prot=mmap.PROT_READ)

    def state(self) -> bytes:
        """Return what changes with every commit; "" if it is not known."""
        return self._map[:_HEADER_BYTES] if self._map else b""

    def close(self) -> None:
        """Let go of the file."""
        if self._map:
            self._map.close()
