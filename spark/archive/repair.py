"""Repairs the archive's table after a power failure: rolls back incomplete versions and checkpoints.

The hot store records a version only after it is synced, and replaced files are removed only after that. So later
versions can be rolled back without loss: the next run repeats their work. They are checked only after an interrupted
run. Damaged checkpoints are always removed if the log has their contents.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
from deltalake.exceptions import DeltaError
from pyarrow import parquet

from conclave.archive.faults import one_line
from conclave.archive.snapshot import find_fault, mismatch_text, open_table, turn_app
from conclave.store.archive.moves import ArchiveState
from spark.hot_store import ArchiveRunError

Action = dict[str, Any]
"""An action of the table's log: one line of an entry, as JSON."""

POINTER = "_last_checkpoint"
"""The file in the log's folder that names the newest checkpoint."""

ACTIONS = "conclave.actions"
"""The key with the number of other actions in an entry that Conclave wrote."""

_METRICS = {
    "add": ("numFiles", "numTargetFilesAdded", "num_added_files"),
    "remove": ("numRemovedFiles", "numTargetFilesRemoved", "num_removed_files"),
}
"""The keys with the number of actions of a kind in an entry. They are verified, since an entry may be truncated."""


@dataclass
class Repaired:
    """The result of a repair: the versions and checkpoints that were rolled back.

    ``first`` and ``last``: the versions, inclusive; -1: no versions. ``checkpoints``: the versions of checkpoints.
    """

    first: int = -1
    last: int = -1
    checkpoints: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.first >= 0 or bool(self.checkpoints)


class Repair:
    """Checks one table, and repairs it if possible."""

    def __init__(
        self, path: Path, state: ArchiveState, begun: int, are_sound: Callable[[Collection[Path]], bool]
    ) -> None:
        """Store the parameters; nothing is read yet.

        ``begun``: the number of the last batch in the hot store. ``are_sound``: verifies the checksums of the messages
        in readable files.
        """
        self._path = path
        self._log = path / "_delta_log"
        self._state = state
        self._begun = begun
        self._are_sound = are_sound

    def apply(self) -> Repaired:
        """Roll back broken versions, and return them. Raises ArchiveRunError.

        After an error nothing has changed, except that checkpoints may be removed whose contents are in the log.
        """
        repaired = Repaired()
        try:
            if not self._log.is_dir():
                return repaired
            newest = max(self._versions(), default=-1)
            broken = self._first_broken(newest)
            repaired.checkpoints = self._drop_checkpoints(newest + 1 if broken is None else broken)
            if broken is not None:
                self._require_whole(broken - 1)
                for version in range(newest, broken - 1, -1):  # newest first, so that the log never has a gap
                    entry_file(self._log, version).unlink(missing_ok=True)
                repaired.first, repaired.last = broken, newest
        except OSError as error:
            raise ArchiveRunError(f"{self._path}: cannot be read: {error}") from error
        return repaired

    def _versions(self) -> list[int]:
        names = (re.fullmatch(r"(\d{20})\.json", path.name) for path in self._log.iterdir())
        return [int(name[1]) for name in names if name]

    def _first_broken(self, newest: int) -> int | None:
        """Return the first broken version after the version in the hot store, or None.

        Raises ArchiveRunError.
        """
        if not self._state.unerased:
            return None  # the last run completed: the hot store has the newest version
        first = self._state.version + 1
        entries = {version: read_entry(self._log, version) for version in range(first, newest + 1)}
        self._require_own_runs(entries)
        for version, actions in entries.items():
            if actions is None or not self._is_whole(actions):
                return version
        return None

    def _require_own_runs(self, entries: Mapping[int, list[Action] | None]) -> None:
        """Raise ArchiveRunError if any entry comes from a run that is not in the hot store."""
        last_versions = {turn_app(self._state.archive_id): self._state.turn, self._state.archive_id: self._begun}
        for actions in entries.values():
            for action in actions or ():
                if "txn" in action and _is_beyond(action["txn"], last_versions):
                    raise ArchiveRunError(mismatch_text(self._path, is_newer=True))

    def _is_whole(self, actions: list[Action]) -> bool:
        """Return whether all files that an entry adds exist, and are undamaged."""
        added = [action["add"] for action in actions if "add" in action]
        files = [self._path / each["path"] for each in added]
        return all(map(_can_be_read, files, added)) and (not files or self._are_sound(files))

    def _drop_checkpoints(self, end: int) -> list[int]:
        """Remove damaged checkpoints, and all from version ``end`` on; return their versions.

        The log must have their contents. Raises ArchiveRunError if it does not.
        """
        checkpoints: dict[int, list[Path]] = {}
        for path in self._log.iterdir():
            if name := re.match(r"(\d{20})\.checkpoint\.", path.name):
                checkpoints.setdefault(int(name[1]), []).append(path)
        damaged = [each for each in checkpoints if each >= end or not all(map(_is_checkpoint, checkpoints[each]))]
        pointer = self._log / POINTER
        newest = _pointer_version(pointer)
        if not damaged and (newest is None or newest in checkpoints):
            return []
        last_whole = max((each for each in checkpoints if each not in damaged), default=-1)
        if missing := set(range(last_whole + 1, end)) - set(self._versions()):
            raise ArchiveRunError(f"{self._path}: is damaged: its log lacks version {min(missing)}")
        pointer.unlink(missing_ok=True)
        for each in damaged:
            for path in checkpoints[each]:
                path.unlink()
        return sorted(damaged)

    def _require_whole(self, version: int) -> None:
        """Raise ArchiveRunError unless ``version`` belongs to this archive, and all its files are on the disk."""
        try:
            table = open_table(self._path, version)
            fault = find_fault(self._path, table, self._state)
            names = [] if fault else pyarrow.table(table.get_add_actions())["path"].to_pylist()
        except (DeltaError, pyarrow.ArrowException) as error:
            raise ArchiveRunError(f"{self._path}: cannot be read: {one_line(error)}") from error
        missing = sum(not (self._path / name).is_file() for name in names)
        if fault or missing:
            raise ArchiveRunError(
                fault or f"{self._path}: is damaged: {missing} files of version {version} are missing"
            )


def read_entry(log: Path, version: int) -> list[Action] | None:
    """Return the actions of an entry of the log; None if it is missing or incomplete. Raises OSError."""
    try:
        lines = entry_file(log, version).read_bytes().splitlines()
        actions = [json.loads(line) for line in lines]
    except (FileNotFoundError, ValueError):
        return None
    if not actions or not all(isinstance(action, dict) for action in actions):
        return None
    infos = (action["commitInfo"] for action in actions if "commitInfo" in action)
    info: Action = next(infos, {})
    if info.get(ACTIONS) not in (None, str(len(actions) - 1)):
        return None
    metrics = info.get("operationMetrics") or {}
    for kind, names in _METRICS.items():
        count = sum(kind in action for action in actions)
        if any(int(metrics[name]) != count for name in names if name in metrics):
            return None
    return actions


def entry_file(log: Path, version: int) -> Path:
    """Return the file in the log for the entry of ``version``."""
    return log / f"{version:020d}.json"


def _is_beyond(transaction: Mapping[str, Any], last_versions: Mapping[str, int]) -> bool:
    app = transaction["appId"]
    return app in last_versions and transaction["version"] > last_versions[app]


def _can_be_read(path: Path, added: Mapping[str, Any]) -> bool:
    """Return whether a file has the size and rows of the log, and undamaged pages. Raises OSError if the disk fails."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    if len(content) != added["size"]:
        return False
    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(content), page_checksum_verification=True)
        for group in range(file.num_row_groups):
            file.read_row_group(group)
    except (pyarrow.ArrowException, OSError):  # readable, but not valid Parquet
        return False
    return "stats" not in added or file.metadata.num_rows == json.loads(added["stats"])["numRecords"]


def _is_checkpoint(path: Path) -> bool:
    """Return whether a file of a checkpoint is complete. Raises OSError if the disk fails."""
    content = path.read_bytes()
    try:
        parquet.read_table(pyarrow.BufferReader(content))
    except (pyarrow.ArrowException, OSError):  # as above
        return False
    return True


def _pointer_version(pointer: Path) -> int | None:
    """Return the version that the pointer file names; -1 if the file is damaged, None if it is missing."""
    try:
        return int(json.loads(pointer.read_bytes())["version"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        return -1
