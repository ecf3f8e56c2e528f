"""Classifies and reads the files of the archive's folder: data files, log entries and leftovers."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from conclave.archive.faults import ADVICE

DATA_FILES = "lifetime=*/span=*/*"
"""The glob pattern of data files in the table's folder, by partition."""

LOG = "_delta_log"
"""The folder of the table's log."""


class DamagedLogError(Exception):
    """An entry of the table's log is damaged. The message is one line that starts with its path."""


def is_unfinished(name: str) -> bool:
    """Return whether this is the name of a log file that delta-rs had not finished when it was killed.

    Entries are staged under names that start with ``_commit_``, other files under their name with # and a number.
    """
    return name.startswith("_commit_") or "#" in name


def actions_of(entry: Path) -> Iterator[dict[str, Any]]:
    """Yield the actions of one log entry. Raises OSError and DamagedLogError."""
    for number, line in enumerate(entry.read_bytes().splitlines(), 1):
        try:
            action = json.loads(line)
        except ValueError:
            action = None
        if not isinstance(action, dict):
            raise DamagedLogError(f"{entry}: an entry of the archive's log is damaged, in line {number}{ADVICE}")
        yield action


def log_fault(entries: Path) -> str:
    """Return in one line which entry of a log is damaged, or "". Newest entries are checked first. Raises OSError."""
    try:
        for entry in sorted(entries.glob("*.json"), reverse=True):
            for _ in actions_of(entry):
                pass
    except DamagedLogError as error:
        return str(error)
    return ""


def file_values(actions: Any, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of each data file in the table's log. ``names``: columns of ``actions``.

    ``actions``: the result of ``get_add_actions(flatten=True)``. A value is None if the log does not have it, for
    example for files that another program wrote.
    """
    import pyarrow  # noqa: PLC0415 - loaded only if there is an archive

    table = pyarrow.table(actions)
    missing = pyarrow.nulls(table.num_rows)
    columns = ((table[name] if name in table.column_names else missing).to_pylist() for name in names)
    return zip(*columns, strict=True)


def is_recent(at: float, now: float, seconds: float) -> bool:
    """Return whether a file with the timestamp ``at`` is younger than ``seconds`` at the second ``now``.

    A timestamp further in the future comes from a wrong clock, and does not count as recent.
    """
    return abs(now - at) < seconds
