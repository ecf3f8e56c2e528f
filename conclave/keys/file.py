"""The key file: the covers of all groups, and in no byte of it a key of what was erased.

A change appends records, makes them durable, and only then overwrites those whose place they take. Once a third of the
file is dead, it is written anew beside it: the new one replaces the former, which is overwritten and then removed. So
after a crash between any two writes no cover is missing, and what is left over is overwritten when the file is opened.

The server and cleanup have the file open at the same time. Each takes the lock to change it, and finds what the other
has appended by the file's size. Reading needs no lock: a record that was overwritten meanwhile has a wrong sum.
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
    beside,
    discard,
    read_current,
    remove_leftovers,
    take_its_place,
    write_all,
)
from conclave.keys.tree import Cover
from conclave.system.durable import sync
from conclave.system.locks import hold_file, open_to_lock

LEAST_DEAD_BYTES = 64 * 1024
"""The file is not written anew for less than 64 KiB of dead records."""

WriteCovers = Callable[[Sequence[tuple[bytes, Cover]]], None]
"""Replaces the covers of blocks, each by its name; a cover without nodes: the block is gone."""


class KeyFileError(Exception):
    """The key file is missing, cannot be used, or is not as it was written. The message is a line for operators."""


class _Location(NamedTuple):
    offset: int
    size: int


class RecordChunk(NamedTuple):
    """Some records, one behind the other."""

    data: bytes
    many: int


def create(path: Path, keys_id: bytes = bytes(records.ID_BYTES)) -> None:
    """Make a key file without keys, durably. Raises KeyFileError, also if there is one.

    ``keys_id``: names the keys of one database, 16 bytes.
    """
    with told(path), hold_file(beside(path, LOCK), wait):
        if path.exists():
            raise KeyFileError(f"{path}: is there already")
        new = beside(path, NEW)
        discard(new)
        with open_to_lock(new, os.O_CREAT | os.O_EXCL) as descriptor:
            write_all(descriptor, records.file_head(0, keys_id), 0)
            os.fsync(descriptor)
        new.rename(path)
        sync(path.parent, follows_links=True)


class Head(NamedTuple):
    """The first unit of a key file, see ``KeyFile``. Of a copy the serial number is that of its last change."""

    serial: int
    keys_id: bytes


def head_of(path: Path) -> Head | None:
    """Return the head of the key file at ``path``; None if none is there, or something else. Raises KeyFileError."""
    try:
        head = records.of_file(read_current(path, UNIT_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    return Head(*head) if head else None


class KeyFile:
    """An open key file. Threads may share it."""

    def __init__(self, path: Path) -> None:
        """Open the file, and settle what a change that was cut short has left. Raises KeyFileError."""
        self.path = path
        self._mutex = RLock()
        self._keys_id, self._descriptor, self._is_held = b"", -1, False
        self._serial = self._latest = 0
        self._untold: set[bytes] = set()
        """The blocks whose covers may be others than before, see ``refresh``."""
        self._forget()
        with self.held():
            pass
        self._untold.clear()  # none was asked for yet

    def close(self) -> None:
        """Close the file. What is called next opens it again."""
        with self._mutex:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = -1
            self._untold.update(self._places)
            self._forget()

    def had(self, named: bytes) -> bool:
        """Tell at once whether a block had a cover when the file was last looked at."""
        return named in self._places

    def names(self) -> list[bytes]:
        """Return the names of all blocks that have a cover, see ``records.name``. Raises KeyFileError."""
        with told(self.path), self._mutex:
            self._look()
            return list(self._places)

    @property
    def keys_id(self) -> bytes:
        """The id with which the file was made."""
        return self._keys_id

    @property
    def serial(self) -> int:
        """The number of the last change that is known: a copy with a smaller one is older."""
        return self._serial

    def whole(self) -> "tuple[Head, list[RecordChunk]]":
        """Return what lives in the file at this moment. Raises KeyFileError, also if it is damaged."""
        with self.held():
            if self._damage:
                raise KeyFileError(f"{self.path}: is damaged: its copies stay as they are")
            return Head(self._serial, self._keys_id), [*self._pieces(sorted(self._places.values()))]

    @property
    def damage(self) -> int:
        """At how many places the file is not as it was written: what a disk has altered."""
        return self._damage

    def refresh(self) -> set[bytes]:
        """Take up what others have changed, and return the names of the blocks concerned. Raises KeyFileError.

        Also of those that were taken up since the last time, by whatever looked at the file.
        """
        with told(self.path), self._mutex:
            self._look()
            untold, self._untold = self._untold, set()
            return untold

    def read(self, named: bytes) -> Cover | None:
        """Return the cover of a block; None if it has none.

        Raises KeyFileError, also if it cannot be told because the file is damaged: a block whose keys were lost is not
        one whose messages were erased.
        """
        with told(self.path), self._mutex:
            found = self._read(named)
            if found is None and not self._is_held:  # drawn by another process, or overwritten meanwhile
                with self.held():
                    found = self._read(named)
            if found is None and (named in self._places or self._damage):
                raise KeyFileError(f"{self.path}: is damaged: keys are missing")
            return found

    @contextmanager
    def held(self) -> Iterator[WriteCovers]:
        """Keep others from changing the file while the block lasts. Raises KeyFileError.

        The block gets what writes. When that returns, the change is durable, and no byte of the file yields a key that
        is in none of the covers. If it fails, covers are as before or as wanted.
        """
        with told(self.path), self._mutex, hold_file(beside(self.path, LOCK), wait):
            try:
                self._is_held = True
                remove_leftovers(self.path)
                self._look()
                yield self._write
            except BaseException:
                self.close()  # what is on the disk now has to be read again
                raise
            finally:
                self._is_held = False

    def _forget(self) -> None:
        self._latest = max(self._latest, self._serial)
        self._places: dict[bytes, int] = {}
        """Where the cover of each block lies, see ``_packed``: there may be very many."""
        self._end = self._serial = self._living = self._damage = 0

    def _read(self, named: bytes) -> Cover | None:
        place = self._places.get(named)
        if place is None:
            return None
        return records.decode(os.pread(self._descriptor, _size(place), _offset(place)), named)

    def _look(self) -> None:
        """Read what was appended, or all of it if the file was replaced."""
        if self._is_replaced():
            if not self._is_held:
                with self.held():
                    return
            self.close()
            self._open()
        if (size := os.fstat(self._descriptor).st_size) > self._end:
            self._scan(size)
        if self._serial < self._latest:  # with some changes of its own it would pass for the newer one
            raise KeyFileError(f"{self.path}: an older key file was put in its place: restart the server")

    def _is_replaced(self) -> bool:
        """Tell whether another file is there, or a shorter one was written over it: the file itself only grows."""
        if self._descriptor < 0:
            return True
        there = self.path.stat()
        is_cut = there.st_size + -there.st_size % UNIT_BYTES < self._end
        return is_cut or not os.path.samestat(os.fstat(self._descriptor), there)

    def _open(self) -> None:
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        head = records.of_file(os.pread(self._descriptor, UNIT_BYTES, 0))
        if head is None:
            raise KeyFileError(f"{self.path}: is not a key file")
        (self._serial, self._keys_id), self._end = head, UNIT_BYTES

    def _scan(self, size: int) -> None:
        """Read the records from ``_end`` on. Without the lock, up to the first that may not be written yet."""
        end = size + -size % UNIT_BYTES
        changed: dict[bytes, int] = {}
        left_over: list[_Location] = []
        unsound: list[tuple[FoundRecord, FoundRecord | None]] = []
        waiting: list[FoundRecord] = []
        with mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ) as data:
            for found in records.walk(data, self._end):
                if found.state is RecordState.SOUND:
                    unsound += [(each, found) for each in waiting]
                    waiting.clear()
                    changed[found.name] = found.offset
                    left_over += self._take_up(found)
                elif found.state is RecordState.HALF_DEAD:
                    left_over.append(_Location(found.offset, found.size))
                elif found.state is RecordState.UNSOUND:
                    waiting.append(found)
                    if not self._is_held:
                        end = found.offset
                        break
        self._end = end
        self._untold.update(changed)
        if self._is_held:
            unsound += [(each, None) for each in waiting]
            self._settle(unsound, left_over, changed)

    def _settle(
        self,
        unsound: list[tuple[FoundRecord, FoundRecord | None]],
        left_over: list[_Location],
        changed: dict[bytes, int],
    ) -> None:
        """Overwrite what a process has left that died, and count what a disk has altered.

        ``unsound``: with the sound record that follows. ``changed``: where the newest record of a block lies.
        """
        for found, following in unsound:
            if self._is_torn(found, following) or changed.get(found.name, 0) > found.offset:
                left_over.append(_Location(found.offset, found.size))
            else:
                self._damage += 1
        self._overwrite(left_over)

    def _is_torn(self, found: FoundRecord, following: FoundRecord | None) -> bool:
        """Tell whether what is unsound is of the last change: it may be written in part, and nothing relies on it.

        Every earlier change was durable before the next one began. Without a sound record behind it, all is of the last
        change that cannot be told. But a cover of several nodes was another before, which is overwritten only once the
        change is durable: without that it was altered.
        """
        if found.serial:
            was_durable = found.size > records.LEAST_BYTES and found.name not in self._places
            return found.serial >= self._serial and not was_durable
        return following is None or (following.serial >= self._serial and found.offset >= following.begin)

    def _take_up(self, found: FoundRecord) -> list[_Location]:
        """Note where the newest cover of a block lies. Returns the place of the former one, if there is any."""
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
            write_all(self._descriptor, records.dead(size), offset)
        if many:
            reach("keys.overwritten")
            os.fsync(self._descriptor)

    def _write(self, covers: Sequence[tuple[bytes, Cover]]) -> None:
        if not covers:
            return
        named = dict(covers)
        added = [records.encode(each, self._serial + 1, self._end, cover) for each, cover in named.items()]
        kept = self._living - sum(_size(self._places.get(each, 0)) for each in named)
        total = self._end + sum(map(len, added))
        living = kept + sum(map(len, added))
        if not self._damage and total - living > max(LEAST_DEAD_BYTES, living // 2):
            self._write_anew(named, added)
        else:
            self._append(added)

    def _append(self, added: Sequence[bytes]) -> None:
        begin = self._end
        write_all(self._descriptor, b"".join(added), begin)
        reach("keys.appended")
        os.fsync(self._descriptor)
        reach("keys.synced")
        left_over: list[_Location] = []
        for record in added:
            (found,) = records.walk(record, 0)
            left_over += self._take_up(found._replace(offset=begin))
            begin += len(record)
        self._end = begin
        self._overwrite(left_over)

    def _write_anew(self, named: dict[bytes, Cover], added: Sequence[bytes]) -> None:
        """Write the file without what is dead. One that is damaged is not: what can still be seen there is needed."""
        kept = sorted((place, each) for each, place in self._places.items() if each not in named)
        records_of = [(each, record) for (each, cover), record in zip(named.items(), added, strict=True) if cover]
        reach("keys.anew_begun")
        pieces = chain(
            self._pieces([place for place, _ in kept]),
            [RecordChunk(b"".join(record for _, record in records_of), len(records_of))],
        )
        end = write_whole(beside(self.path, NEW), Head(self._serial + 2, self._keys_id), pieces, self.path)
        reach("keys.anew_written")
        take_its_place(self.path)
        untold = set(self._untold)
        self.close()
        self._open()
        for each, size in (*((each, _size(place)) for place, each in kept), *((k, len(v)) for k, v in records_of)):
            self._places[each] = _packed(self._end, size)
            self._end += size
        self._living = end - UNIT_BYTES
        self._untold = untold  # who has called knows of the others

    def _pieces(self, places: Sequence[int]) -> Iterator[RecordChunk]:
        """Yield records as they lie in the file, in pieces of about PIECE_BYTES."""
        piece: list[bytes] = []
        size = 0
        for place in places:
            piece.append(os.pread(self._descriptor, _size(place), _offset(place)))
            size += _size(place)
            if size >= PIECE_BYTES:
                yield RecordChunk(b"".join(piece), len(piece))
                piece, size = [], 0
        yield RecordChunk(b"".join(piece), len(piece))


def write_whole(new: Path, head: Head, pieces: Iterable[RecordChunk], of: Path) -> int:
    """Write a key file ``new`` that has the records of ``pieces``, which are those ``of`` another; return its size.

    Raises KeyFileError if a record is not as it was written: the disk may have altered it since the other was opened.
    """
    with open_to_lock(new, os.O_CREAT | os.O_EXCL) as descriptor:
        end = write_all(descriptor, records.file_head(*head), 0)
        for data, many in pieces:
            if [found.state for found in records.walk(data, 0)] != [RecordState.SOUND] * many:
                raise KeyFileError(f"{of}: is damaged: it is not written anew, nor are its copies")
            end = write_all(descriptor, data, end)
        os.fsync(descriptor)
    return end


def _packed(offset: int, size: int) -> int:
    """Return a place as one number, which takes a fifth of the memory."""
    return offset // UNIT_BYTES << 16 | size // UNIT_BYTES


def _offset(place: int) -> int:
    return (place >> 16) * UNIT_BYTES


def _size(place: int) -> int:
    return (place & 0xFFFF) * UNIT_BYTES


def wait() -> None:
    """Another process changes the file, which takes less than a second, or writes a copy of it."""


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Raise KeyFileError for what the system refuses within the block."""
    try:
        yield
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
