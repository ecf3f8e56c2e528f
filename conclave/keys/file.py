"""The key file: the covers of all groups. It contains no byte from which an erased key can be derived.

A change appends records, flushes them, and only then overwrites the records that they replace. Once a third of the file
consists of erased records, a new file replaces it, and the old one is overwritten and removed. So after a
crash between any two writes no cover is missing, and leftovers are overwritten when the file is opened.

The server and cleanup have the file open at the same time. Each takes the lock to change it, and detects records that
the other has appended by the file's size. Reading needs no lock: a record that was overwritten in between has a wrong
checksum.
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
"""The file is not rewritten for less than 64 KiB of erased records."""

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
    """Create an empty key file, durably. Raises KeyFileError, for example if the file exists.

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
        self._head = b""
        """The first unit of the open file."""
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
            self._unreported.update(self._locations)
            self._reset()

    def knows(self, name: bytes) -> bool:
        """Return whether a block had a cover when the file was last read, without reading it."""
        return name in self._locations

    def names(self) -> list[bytes]:
        """Return the names of all blocks that have a cover, see ``records.block_name``. Raises KeyFileError."""
        with as_key_file_errors(self.path), self._mutex:
            self._update()
            return list(self._locations)

    @property
    def keys_id(self) -> bytes:
        """The id with which the file was created."""
        return self._keys_id

    @property
    def serial(self) -> int:
        """The number of the last known change. A copy with a smaller number is older."""
        return self._serial

    def contents(self) -> "tuple[Head, list[RecordChunk]]":
        """Return the head and all valid records. Raises KeyFileError, for example if the file is damaged."""
        with self.locked():
            if self._damage:
                raise KeyFileError(f"{self.path}: is damaged: its copies are not updated")
            return Head(self._serial, self._keys_id), [*self._chunks(sorted(self._locations.values()))]

    @property
    def damage(self) -> int:
        """The number of records that the disk has altered."""
        return self._damage

    def refresh(self) -> set[bytes]:
        """Read the changes of other processes, and return the names of all blocks changed since the last call.

        These include changes that other methods have read in between. Raises KeyFileError.
        """
        with as_key_file_errors(self.path), self._mutex:
            self._update()
            unreported, self._unreported = self._unreported, set()
            return unreported

    def read(self, name: bytes) -> Cover | None:
        """Return the cover of a block; None if it has none.

        Raises KeyFileError even if the cover may only be missing because the file is damaged: lost keys must not be
        mistaken for erased ones.
        """
        with as_key_file_errors(self.path), self._mutex:
            cover = self._read(name)
            if cover is None and not self._is_held:  # created or overwritten by another process
                with self.locked():
                    cover = self._read(name)
            if cover is None and (name in self._locations or self._damage):
                raise KeyFileError(f"{self.path}: is damaged: keys are missing")
            return cover

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
        self._locations: dict[bytes, int] = {}
        """The location of each block's cover, see ``_pack_location``. There may be very many."""
        self._end = self._serial = self._used_bytes = self._damage = 0

    def _read(self, name: bytes) -> Cover | None:
        location = self._locations.get(name)
        if location is None:
            return None
        return records.decode(os.pread(self._descriptor, _size(location), _offset(location)), name)

    def _update(self) -> None:
        """Read the appended records, or the whole file if it was replaced."""
        if self._is_replaced():
            if not self._is_held:
                with self.locked():
                    return
            self.close()
            self._open()
        if (size := os.fstat(self._descriptor).st_size) > self._end:
            self._scan(size)
        if self._serial < self._latest:  # after some changes it would look like the newer file
            raise KeyFileError(f"{self.path}: was replaced by an older key file: restart the server")

    def _is_replaced(self) -> bool:
        """Return whether the file was replaced, or overwritten by another one: the file itself only grows.

        An older file may be longer, since a rewrite makes the file shorter. A rewritten file has another head.
        """
        if self._descriptor < 0:
            return True
        status = self.path.stat()
        is_shorter = status.st_size + -status.st_size % UNIT_BYTES < self._end
        return (
            is_shorter
            or not os.path.samestat(os.fstat(self._descriptor), status)
            or os.pread(self._descriptor, UNIT_BYTES, 0) != self._head
        )

    def _open(self) -> None:
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._head = os.pread(self._descriptor, UNIT_BYTES, 0)
        head = records.parse_file_head(self._head)
        if head is None:
            raise KeyFileError(f"{self.path}: is not a key file")
        if self._keys_id not in (b"", head[1]):  # keys of new messages would get lost in it
            raise KeyFileError(f"{self.path}: was replaced by the key file of another database: put its own back")
        (self._serial, self._keys_id), self._end = head, UNIT_BYTES

    def _scan(self, size: int) -> None:
        """Read the records from ``_end`` on. Without the lock, stop at the first that may be incomplete."""
        end = size + -size % UNIT_BYTES
        newest_offsets: dict[bytes, int] = {}
        leftovers: list[_Location] = []
        invalid: list[tuple[FoundRecord, FoundRecord | None]] = []
        unclassified: list[FoundRecord] = []
        with mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ) as data:
            for record in records.scan(data, self._end):
                if record.state is RecordState.VALID:
                    invalid += [(each, record) for each in unclassified]
                    unclassified.clear()
                    newest_offsets[record.name] = record.offset
                    leftovers += self._add_cover(record)
                elif record.state is RecordState.PARTLY_ERASED:
                    leftovers.append(_Location(record.offset, record.size))
                elif record.state is RecordState.INVALID:
                    unclassified.append(record)
                    if not self._is_held:
                        end = record.offset
                        break
        self._end = end
        self._unreported.update(newest_offsets)
        if self._is_held:
            invalid += [(each, None) for each in unclassified]
            self._clean_up(invalid, leftovers, newest_offsets)

    def _clean_up(
        self,
        invalid: list[tuple[FoundRecord, FoundRecord | None]],
        leftovers: list[_Location],
        newest_offsets: dict[bytes, int],
    ) -> None:
        """Overwrite the leftovers of an interrupted change, and count damaged records.

        ``invalid``: each with the valid record that follows. ``newest_offsets``: those of the newest records, by block.
        """
        for record, following in invalid:
            if self._is_torn(record, following) or newest_offsets.get(record.name, 0) > record.offset:
                leftovers.append(_Location(record.offset, record.size))
            else:
                self._damage += 1
        self._overwrite(leftovers)

    def _is_torn(self, record: FoundRecord, following: FoundRecord | None) -> bool:
        """Return whether an invalid record is part of an incomplete last change, on which nothing relies.

        Every earlier change was durable before the next one began. A record with an unreadable serial number counts as
        part of the last change if no valid record follows. But a cover of several nodes replaces another one, which is
        overwritten only once the change is durable: if that is gone, the record was altered by the disk.
        """
        if record.serial:
            was_durable = record.size > records.MIN_RECORD_BYTES and record.name not in self._locations
            return record.serial >= self._serial and not was_durable
        return following is None or (following.serial >= self._serial and record.offset >= following.begin)

    def _add_cover(self, record: FoundRecord) -> list[_Location]:
        """Record the location of a block's newest cover. Return the location of the replaced one, if any."""
        self._serial = max(self._serial, record.serial)
        former = self._locations.pop(record.name, None)
        if former is not None:
            self._used_bytes -= _size(former)
        if not record.is_empty:
            self._locations[record.name] = _pack_location(record.offset, record.size)
            self._used_bytes += record.size
        return [] if former is None else [_Location(_offset(former), _size(former))]

    def _overwrite(self, locations: Sequence[_Location]) -> None:
        for offset, size in locations:
            write_all(self._descriptor, records.erased_record(size), offset)
        if locations:
            reach("keys.overwritten")
            os.fsync(self._descriptor)

    def _write(self, covers: Sequence[tuple[bytes, Cover]]) -> None:
        if not covers:
            return
        changed_covers = dict(covers)
        new_records = [
            records.encode(each, self._serial + 1, self._end, cover) for each, cover in changed_covers.items()
        ]
        unchanged_bytes = self._used_bytes - sum(_size(self._locations.get(each, 0)) for each in changed_covers)
        file_bytes = self._end + sum(map(len, new_records))
        used_bytes = unchanged_bytes + sum(map(len, new_records))
        if not self._damage and file_bytes - used_bytes > max(MIN_DEAD_BYTES, used_bytes // 2):
            self._rewrite(changed_covers, new_records)
        else:
            self._append(new_records)

    def _append(self, new_records: Sequence[bytes]) -> None:
        begin = self._end
        write_all(self._descriptor, b"".join(new_records), begin)
        reach("keys.appended")
        os.fsync(self._descriptor)
        reach("keys.synced")
        leftovers: list[_Location] = []
        for record in new_records:
            (parsed,) = records.scan(record, 0)
            leftovers += self._add_cover(parsed._replace(offset=begin))
            begin += len(record)
        self._end = begin
        self._overwrite(leftovers)

    def _rewrite(self, changed_covers: dict[bytes, Cover], new_records: Sequence[bytes]) -> None:
        """Rewrite the file without erased records. A damaged file is not rewritten, so that it can be examined."""
        unchanged = sorted((location, each) for each, location in self._locations.items() if each not in changed_covers)
        changed_records = [
            (each, record) for (each, cover), record in zip(changed_covers.items(), new_records, strict=True) if cover
        ]
        reach("keys.anew_begun")
        chunks = chain(
            self._chunks([location for location, _ in unchanged]),
            [RecordChunk(b"".join(record for _, record in changed_records), len(changed_records))],
        )
        end = write_key_file(sibling(self.path, NEW), Head(self._serial + 2, self._keys_id), chunks, self.path)
        reach("keys.anew_written")
        replace_current(self.path)
        unreported = set(self._unreported)
        self.close()
        self._open()
        for each, size in (
            *((each, _size(location)) for location, each in unchanged),
            *((k, len(v)) for k, v in changed_records),
        ):
            self._locations[each] = _pack_location(self._end, size)
            self._end += size
        self._used_bytes = end - UNIT_BYTES
        self._unreported = unreported  # the caller already has its own changes

    def _chunks(self, locations: Sequence[int]) -> Iterator[RecordChunk]:
        """Yield the raw records in chunks of about PIECE_BYTES."""
        chunk: list[bytes] = []
        size = 0
        for location in locations:
            chunk.append(os.pread(self._descriptor, _size(location), _offset(location)))
            size += _size(location)
            if size >= PIECE_BYTES:
                yield RecordChunk(b"".join(chunk), len(chunk))
                chunk, size = [], 0
        yield RecordChunk(b"".join(chunk), len(chunk))


def write_key_file(new: Path, head: Head, chunks: Iterable[RecordChunk], source: Path) -> int:
    """Write a key file ``new`` with the records in ``chunks`` of the key file ``source``; return its size.

    Raises KeyFileError if a record is damaged: the disk may have altered it since ``source`` was opened.
    """
    with open_to_lock(new, os.O_CREAT | os.O_EXCL) as descriptor:
        end = write_all(descriptor, records.file_head(*head), 0)
        for data, count in chunks:
            if [record.state for record in records.scan(data, 0)] != [RecordState.VALID] * count:
                raise KeyFileError(f"{source}: is damaged: neither it nor its copies are rewritten")
            end = write_all(descriptor, data, end)
        os.fsync(descriptor)
    return end


def _pack_location(offset: int, size: int) -> int:
    """Return a location as one number, which takes a fifth of the memory."""
    return offset // UNIT_BYTES << 16 | size // UNIT_BYTES


def _offset(location: int) -> int:
    return (location >> 16) * UNIT_BYTES


def _size(location: int) -> int:
    return (location & 0xFFFF) * UNIT_BYTES


def wait_silently() -> None:
    """Do nothing. Another process is changing the file, for less than a second, or writing a copy of it."""


@contextmanager
def as_key_file_errors(path: Path) -> Iterator[None]:
    """Convert an OSError in the block to KeyFileError."""
    try:
        yield
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
