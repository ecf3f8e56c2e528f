"""Tells which files of the archive's folder are whose: the table's, its log's, or left over."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from conclave.archive.faults import ADVICE

DATA_FILES = "lifetime=*/span=*/*"
"""Where data files lie in the table's folder, by partition."""

LOG = "_delta_log"
"""The folder of the table's log."""


class DamagedLogError(Exception):
    """An entry of the table's log is not as it was written. The message is one line, which begins with its path."""


def is_unfinished(name: str) -> bool:
    """Return whether delta-rs was killed before this file of the log was whole, by its name.

    Entries are staged under names that begin with ``_commit_``, other files under their own with a # and a number.
    """
    return name.startswith("_commit_") or "#" in name


def actions_of(entry: Path) -> Iterator[dict[str, Any]]:
    """Yield the actions of one entry of the log. Raises OSError and DamagedLogError."""
    for number, line in enumerate(entry.read_bytes().splitlines(), 1):
        try:
            action = json.loads(line)
        except ValueError:
            action = None
        if not isinstance(action, dict):
            raise DamagedLogError(f"{entry}: an entry of the archive's log is damaged, in line {number}{ADVICE}")
        yield action


def log_fault(entries: Path) -> str:
    """Return in one line which entry of a log is damaged, the newest one first; "" if none is. Raises OSError."""
    try:
        for entry in sorted(entries.glob("*.json"), reverse=True):
            for _ in actions_of(entry):
                pass
    except DamagedLogError as error:
        return str(error)
    return ""


def told_of(actions: Any, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield what the table's log says of each of its files, by names of delta-rs: ``get_add_actions(flatten=True)``.

    None where it says nothing, as of a file that another program has written.
    """
    import pyarrow  # noqa: PLC0415 - a server without an archive does not pay for it

    told = pyarrow.table(actions)
    unsaid = pyarrow.nulls(told.num_rows)
    columns = ((told[name] if name in told.column_names else unsaid).to_pylist() for name in names)
    return zip(*columns, strict=True)


def is_recent(at: float, now: float, seconds: float) -> bool:
    """Return whether something of the second ``at`` is younger than ``seconds`` at the second ``now``.

    What lies further ahead than that was stamped by a fast clock, which has been set right since: it is not.
    """
    return abs(now - at) < seconds
