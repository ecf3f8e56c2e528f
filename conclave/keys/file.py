"""The key file: the covers of all groups. It contains no byte from which an erased key can be derived.

A change appends records, flushes them, and only then overwrites the records that they replace. Once a third of the file
is dead, a new file is written beside it, which replaces the old one; the old one is overwritten and removed. So after a
crash between any two writes no cover is missing, and leftovers are overwritten when the file is opened.

The server and cleanup have the file open at the same time. Each takes the lock to change it, and detects what the other
has appended by the file's size. Reading needs no lock: a record that was overwritten meanwhile has a wrong checksum.
"""

import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from threading import RLock
from typing import NamedTuple

from conclave.failpoints import reach
from conclave.keys import records
from conclave.keys.records import UNIT_BYTES, FoundRecord, RecordState
from conclave.keys.replacing import (
    LOCK,
    NEW,
    PIECE_BYTES,
    discard,
    read_current,
    remove_leftovers,
    replace_current,
    sibling,
    write_all,
)
from conclave.keys.tree import Cover
from conclave.system.durable import sync
from conclave.system.locks import hold_file, open_to_lock

MIN_DEAD_BYTES = 64 * 1024
"""The file is not rewritten for less than 64 KiB of dead records."""

WriteCovers = Callable[[Sequence[tuple[bytes, Cover]]], None]
"""Replaces the covers of blocks, given by name. An empty cover removes the block."""


class KeyFileError(Exception):
    """The key file is missing, unusable or damaged. The message is a line for operators."""


class _Location(NamedTuple):
    offset: int
    size: int


class RecordChunk(NamedTuple):
    """The data of ``record_count`` consecutive records."""

    data: bytes
    record_count: int


def create(path: Path, keys_id: bytes = bytes(records.ID_BYTES)) -> None:
    """Create an empty key file, durably. Raises KeyFileError, also if the file exists.

    ``keys_id``: identifies the keys of one database, 16 bytes.
    """
    with as_key_file_errors(path), hold_file(sibling(path, LOCK), wait_silently):
        if path.exists():
            raise KeyFileError(f"{path}: exists already")
        new = sibling(path, NEW)
        discard(new)
        with open_to_lock(new, os.O_CREAT | os.O_EXCL) as descriptor:
            write_all(descriptor, records.file_head(0, keys_id), 0)
            os.fsync(descriptor)
        new.rename(path)
        sync(path.parent, follows_links=True)


class Head(NamedTuple):
    """The first unit of a key file, see ``KeyFile``. In a copy, ``serial`` is that of its last change."""

    serial: int
    keys_id: bytes


def head_of(path: Path) -> Head | None:
    """Return the head of the key file at ``path``; None if it is missing, or not a key file. Raises KeyFileError."""
    try:
        head = records.parse_file_head(read_current(path, UNIT_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    return Head(*head) if head else None


class KeyFile:
    """An open key file. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Open the file, and clean up after an interrupted change. Raises KeyFileError."""
        self.path = path
        self._mutex = RLock()
        self._keys_id, self._descriptor, self._is_held = b"", -1, False
        self._serial = self._latest = 0
        self._unreported: set[bytes] = set()
        """The blocks whose covers may have changed, see ``refresh``."""
        self._reset()
        with self.locked():
            pass
        self._unreported.clear()  # no cover was returned yet

    def close(self) -> None:
        """Close the file. The next call opens it again."""
        with self._mutex:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = -1
            self._unreported.update(self._places)
            self._reset()

    def knows(self, name: bytes) -> bool:
        """Return whether a block had a cover when the file was last read, without reading it."""
        return name in self._places

    def names(self) -> list[bytes]:
        """Return the names of all blocks that have a cover, see ``records.block_name``. Raises KeyFileError."""
        with as_key_file_errors(self.path), self._mutex:
            self._update()
            return list(self._places)

    @property
    def keys_id(self) -> bytes:
        """The id with which the file was created."""
        return self._keys_id

    @property
    def serial(self) -> int:
        """The number of the last known change. A copy with a smaller number is older."""
        return self._serial

    def contents(self) -> "tuple[Head, list[RecordChunk]]":
        """Return the head and all living records. Raises KeyFileError, also if the file is damaged."""
        with self.locked():
            if self._damage:
                raise KeyFileError(f"{self.path}: is damaged: its copies are not updated")
            return Head(self._serial, self._keys_id), [*self._pieces(sorted(self._places.values()))]

    @property
    def damage(self) -> int:
        """The number of damaged records: those that the disk has altered."""
        return self._damage

    def refresh(self) -> set[bytes]:
        """Read the changes of other processes, and return the names of all blocks changed since the last call.

        These include changes that other methods have read meanwhile. Raises KeyFileError.
        """
        with as_key_file_errors(self.path), self._mutex:
            self._update()
            unreported, self._unreported = self._unreported, set()
            return unreported

    def read(self, name: bytes) -> Cover | None:
        """Return the cover of a block; None if it has none.

        Raises KeyFileError, also if the cover may be missing because the file is damaged: a block whose keys were lost
        must not be taken for one whose messages were erased.
        """
        with as_key_file_errors(self.path), self._mutex:
            found = self._read(name)
            if found is None and not self._is_held:  # created by another process, or overwritten meanwhile
                with self.locked():
                    found = self._read(name)
            if found is None and (name in self._places or self._damage):
                raise KeyFileError(f"{self.path}: is damaged: keys are missing")
            return found

    @contextmanager
    def locked(self) -> Iterator[WriteCovers]:
        """Lock the file against changes by others for the duration of the block. Raises KeyFileError.

        Yields the function that writes covers. When it returns, the change is durable, and the file contains no key
        that is in none of the covers. If it fails, each cover is either the old or the new one.
        """
        with as_key_file_errors(self.path), self._mutex, hold_file(sibling(self.path, LOCK), wait_silently):
            try:
                self._is_held = True
                remove_leftovers(self.path)
                self._update()
                yield self._write
            except BaseException:
                self.close()  # so that the file is read again
                raise
            finally:
                self._is_held = False

    def _reset(self) -> None:
        self._latest = max(self._latest, self._serial)
        self._places: dict[bytes, int] = {}
        """The location of each block's cover, see ``_packed``. There may be very many."""
        self._end = self._serial = self._living = self._damage = 0

    def _read(self, name: bytes) -> Cover | None:
        place = self._places.get(name)
        if place is None:
            return None
        return records.decode(os.pread(self._descriptor, _size(place), _offset(place)), name)

    def _update(self) -> None:
        """Read what was appended, or the whole file if it was replaced."""
        if self._is_replaced():
            if not self._is_held:
                with self.locked():
                    return
            self.close()
            self._open()
        if (size := os.fstat(self._descriptor).st_size) > self._end:
            self._scan(size)
        if self._serial < self._latest:  # after some changes of its own it would look like the newer one
            raise KeyFileError(f"{self.path}: was replaced by an older key file: restart the server")

    def _is_replaced(self) -> bool:
        """Return whether the file was replaced, or overwritten by a shorter one: the file itself only grows."""
        if self._descriptor < 0:
            return True
        there = self.path.stat()
        is_cut = there.st_size + -there.st_size % UNIT_BYTES < self._end
        return is_cut or not os.path.samestat(os.fstat(self._descriptor), there)

    def _open(self) -> None:
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        head = records.parse_file_head(os.pread(self._descriptor, UNIT_BYTES, 0))
        if head is None:
            raise KeyFileError(f"{self.path}: is not a key file")
        (self._serial, self._keys_id), self._end = head, UNIT_BYTES

    def _scan(self, size: int) -> None:
        """Read the records from ``_end`` on. Without the lock, stop at the first that may be incomplete."""
        end = size + -size % UNIT_BYTES
        changed: dict[bytes, int] = {}
        leftovers: list[_Location] = []
        invalid: list[tuple[FoundRecord, FoundRecord | None]] = []
        waiting: list[FoundRecord] = []
        with mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ) as data:
            for found in records.scan(data, self._end):
                if found.state is RecordState.VALID:
                    invalid += [(each, found) for each in waiting]
                    waiting.clear()
                    changed[found.name] = found.offset
                    leftovers += self._add_cover(found)
                elif found.state is RecordState.PARTLY_ERASED:
                    leftovers.append(_Location(found.offset, found.size))
                elif found.state is RecordState.INVALID:
                    waiting.append(found)
                    if not self._is_held:
                        end = found.offset
                        break
        self._end = end
        self._unreported.update(changed)
        if self._is_held:
            invalid += [(each, None) for each in waiting]
            self._clean_up(invalid, leftovers, changed)

    def _clean_up(
        self,
        invalid: list[tuple[FoundRecord, FoundRecord | None]],
        leftovers: list[_Location],
        changed: dict[bytes, int],
    ) -> None:
        """Overwrite the leftovers of an interrupted change, and count damaged records.

        ``invalid``: each with the valid record that follows. ``changed``: the offset of the newest record of a block.
        """
        for found, following in invalid:
            if self._is_torn(found, following) or changed.get(found.name, 0) > found.offset:
                leftovers.append(_Location(found.offset, found.size))
            else:
                self._damage += 1
        self._overwrite(leftovers)

    def _is_torn(self, found: FoundRecord, following: FoundRecord | None) -> bool:
        """Return whether an invalid record is part of an incomplete last change, on which nothing relies.

        Every earlier change was durable before the next one began. A record with an unreadable serial number counts as
        part of the last change if no valid record follows. But a cover of several nodes replaces another one, which is
        overwritten only once the change is durable: if that is gone, the record was altered by the disk.
        """
        if found.serial:
            was_durable = found.size > records.MIN_RECORD_BYTES and found.name not in self._places
            return found.serial >= self._serial and not was_durable
        return following is None or (following.serial >= self._serial and found.offset >= following.begin)

    def _add_cover(self, found: FoundRecord) -> list[_Location]:
        """Record the location of a block's newest cover. Return the location of the replaced one, if any."""
        self._serial = max(self._serial, found.serial)
        former = self._places.pop(found.name, None)
        if former is not None:
            self._living -= _size(former)
        if not found.is_empty:
            self._places[found.name] = _packed(found.offset, found.size)
            self._living += found.size
        return [] if former is None else [_Location(_offset(former), _size(former))]

    def _overwrite(self, many: Sequence[_Location]) -> None:
        for offset, size in many:
            write_all(self._descriptor, records.erased_record(size), offset)
        if many:
            reach("keys.overwritten")
            os.fsync(self._descriptor)

    def _write(self, covers: Sequence[tuple[bytes, Cover]]) -> None:
        if not covers:
            return
        changed = dict(covers)
        added = [records.encode(each, self._serial + 1, self._end, cover) for each, cover in changed.items()]
        kept = self._living - sum(_size(self._places.get(each, 0)) for each in changed)
        total = self._end + sum(map(len, added))
        living = kept + sum(map(len, added))
        if not self._damage and total - living > max(MIN_DEAD_BYTES, living // 2):
            self._rewrite(changed, added)
        else:
            self._append(added)

    def _append(self, added: Sequence[bytes]) -> None:
        begin = self._end
        write_all(self._descriptor, b"".join(added), begin)
        reach("keys.appended")
        os.fsync(self._descriptor)
        reach("keys.synced")
        leftovers: list[_Location] = []
        for record in added:
            (found,) = records.scan(record, 0)
            leftovers += self._add_cover(found._replace(offset=begin))
            begin += len(record)
        self._end = begin
        self._overwrite(leftovers)

    def _rewrite(self, changed: dict[bytes, Cover], added: Sequence[bytes]) -> None:
        """Rewrite the file without dead records. A damaged file is not rewritten, so that it can be examined."""
        kept = sorted((place, each) for each, place in self._places.items() if each not in changed)
        records_of = [(each, record) for (each, cover), record in zip(changed.items(), added, strict=True) if cover]
        reach("keys.anew_begun")
        pieces = chain(
            self._pieces([place for place, _ in kept]),
            [RecordChunk(b"".join(record for _, record in records_of), len(records_of))],
        )
        end = write_key_file(sibling(self.path, NEW), Head(self._serial + 2, self._keys_id), pieces, self.path)
        reach("keys.anew_written")
        replace_current(self.path)
        unreported = set(self._unreported)
        self.close()
        self._open()
        for each, size in (*((each, _size(place)) for place, each in kept), *((k, len(v)) for k, v in records_of)):
            self._places[each] = _packed(self._end, size)
            self._end += size
        self._living = end - UNIT_BYTES
        self._unreported = unreported  # the caller knows of its own changes

    def _pieces(self, places: Sequence[int]) -> Iterator[RecordChunk]:
        """Yield the raw records in chunks of about PIECE_BYTES."""
        piece: list[bytes] = []
        size = 0
        for place in places:
            piece.append(os.pread(self._descriptor, _size(place), _offset(place)))
            size += _size(place)
            if size >= PIECE_BYTES:
                yield RecordChunk(b"".join(piece), len(piece))
                piece, size = [], 0
        yield RecordChunk(b"".join(piece), len(piece))


def write_key_file(new: Path, head: Head, pieces: Iterable[RecordChunk], of: Path) -> int:
    """Write a key file ``new`` with the records in ``pieces`` of the key file ``of``; return its size.

    Raises KeyFileError if a record is damaged: the disk may have altered it since ``of`` was opened.
    """
    with open_to_lock(new, os.O_CREAT | os.O_EXCL) as descriptor:
        end = write_all(descriptor, records.file_head(*head), 0)
        for data, count in pieces:
            if [found.state for found in records.scan(data, 0)] != [RecordState.VALID] * count:
                raise KeyFileError(f"{of}: is damaged: neither it nor its copies are rewritten")
            end = write_all(descriptor, data, end)
        os.fsync(descriptor)
    return end


def _packed(offset: int, size: int) -> int:
    """Return a location as one number, which takes a fifth of the memory."""
    return offset // UNIT_BYTES << 16 | size // UNIT_BYTES


def _offset(place: int) -> int:
    return (place >> 16) * UNIT_BYTES


def _size(place: int) -> int:
    return (place & 0xFFFF) * UNIT_BYTES


def wait_silently() -> None:
    """Do nothing. Another process is changing the file, for less than a second, or writing a copy of it."""


@contextmanager
def as_key_file_errors(path: Path) -> Iterator[None]:
    """Convert an OSError in the block to KeyFileError."""
    try:
        yield
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
