"""A disk whose power fails: what was written and not synced is there or not, sector by sector.

The names of a folder change in the order in which they were changed, as with a journal, but only a sync of the folder
makes sure of it; a renamed file may have both names, which is more than a journal allows.
"""

import os
import random
import stat
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

SECTOR_BYTES = 512


@dataclass(frozen=True)
class Event:
    """What a program asked of the disk; ``told``: what a test noted at that moment."""

    kind: str
    file: int = 0
    offset: int = 0
    data: bytes = b""
    name: str = ""
    told: Any = None


class Disk:
    """Records what is done in one folder, and makes folders as they may be after the power failed."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.events = folder, list[Event]()
        self._ids: dict[int, int] = {}
        self._files = {self._id(each.stat()): each.read_bytes() for each in folder.iterdir()}
        self._names = {each.name: self._id(each.stat()) for each in folder.iterdir()}
        for name in ("pwrite", "fsync", "link", "rename", "replace", "unlink", "open"):
            patch.setattr(os, name, self._recording(name, getattr(os, name)))

    def tell(self, told: Any) -> None:
        """Note what has been done, as whoever waited for it believes."""
        self.events.append(Event("told", told=told))

    def _recording(self, kind: str, real: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            if kind == "unlink":
                self._note(kind, given)
            found = real(*given, **named)
            if kind != "unlink":
                self._note(kind, given, found)
            return found

        return call

    def _note(self, kind: str, given: tuple[Any, ...], found: Any = None) -> None:
        if kind == "pwrite":
            descriptor, data, offset = given
            self.events.append(Event("write", self._id(os.fstat(descriptor)), offset, bytes(data[:found])))
        elif kind == "fsync":
            status = os.fstat(given[0])
            self.events.append(Event("sync names" if stat.S_ISDIR(status.st_mode) else "sync", self._id(status)))
        elif kind == "open" and Path(given[0]).parent == self.folder and given[1] & os.O_CREAT:
            file = self._id(os.fstat(found), is_new=bool(given[1] & os.O_EXCL))
            self.events.append(Event("name", file, name=Path(given[0]).name))
        elif kind in ("link", "rename", "replace"):
            former, name = map(Path, given[:2])
            self.events.append(Event("name", self._id(name.stat()), name=name.name))
            if kind != "link":
                self.events.append(Event("unname", name=former.name))
        elif kind == "unlink":
            self.events.append(Event("unname", name=Path(given[0]).name))

    def _id(self, status: os.stat_result, *, is_new: bool = False) -> int:
        """Return what tells a file from all others: the system gives the number of a removed one again."""
        if is_new or status.st_ino not in self._ids:
            self._ids[status.st_ino] = len(self.events) * 1000 + len(self._ids)
        return self._ids[status.st_ino]

    def fail(self, moment: int, chance: random.Random, folder: Path) -> None:
        """Make ``folder`` as it may be if the power fails after so many events."""
        files, names = defaultdict(bytes, self._files), dict(self._names)
        waiting: dict[int, list[Event]] = defaultdict(list)
        unsynced: list[Event] = []
        for event in self.events[:moment]:
            if event.kind == "write":
                waiting[event.file].append(event)
            elif event.kind == "sync":
                _write(files, waiting.pop(event.file, []))
            elif event.kind == "sync names":
                _rename(names, unsynced)
                unsynced.clear()
            elif event.kind != "told":
                unsynced.append(event)
        _rename(names, unsynced[: chance.randint(0, len(unsynced))])
        likely = chance.choice((0.0, 0.2, 0.5, 0.8, 1.0))
        sectors = [each for events in waiting.values() for event in events for each in _sectors(event)]
        _write(files, [each for each in sectors if chance.random() < likely])
        _lay_out(folder, names, files)

    def told(self, moment: int) -> Any:
        """Return what was told last before a moment."""
        return next(each.told for each in reversed(self.events[:moment]) if each.kind == "told")

    def told_next(self, moment: int) -> Any:
        """Return what is told next."""
        return next(each.told for each in self.events[moment:] if each.kind == "told")


def _rename(names: dict[str, int], events: list[Event]) -> None:
    for event in events:
        if event.kind == "name":
            names[event.name] = event.file
        else:
            names.pop(event.name, None)


def _write(files: dict[int, bytes], events: list[Event]) -> None:
    for file, offset, data in ((each.file, each.offset, each.data) for each in events):
        former = files[file].ljust(offset, b"\0")
        files[file] = former[:offset] + data + former[offset + len(data) :]


def _sectors(event: Event) -> list[Event]:
    """Return a write as the parts of it that lie in one sector each."""
    found, offset, end = [], event.offset, event.offset + len(event.data)
    while offset < end:
        begin, offset = offset, min(end, (offset // SECTOR_BYTES + 1) * SECTOR_BYTES)
        part = event.data[begin - event.offset : offset - event.offset]
        found.append(replace(event, offset=begin, data=part))
    return found


def _lay_out(folder: Path, names: dict[str, int], files: dict[int, bytes]) -> None:
    folder.mkdir()
    first: dict[int, Path] = {}
    for name, file in names.items():
        if file in first:
            (folder / name).hardlink_to(first[file])
        else:
            first[file] = folder / name
            (folder / name).write_bytes(files[file])
