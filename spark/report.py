"""Defines the report of a run, for the log and the history."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from conclave.retention.jobs import EVERYTHING
from conclave.retention.rules import REPORTED


@dataclass
class Report:
    """The results of one run. Times are Unix seconds.

    ``job``: the name of its scope. ``counts``: deleted rows by rule, including the archive. ``archived``: how many
    messages moved to the archive. ``held``: how many messages only legal holds keep, see ``due.count_held``.
    ``overdue_groups`` and ``overdue_seconds``: the erasable messages that are left, see ``overdue.total_overdue``.
    ``error``: "" if the run succeeded. ``differing``: in a dry run, the settings that differ from those in force.
    ``cpu_seconds``, ``lock_seconds``, ``longest_lock_seconds``: the costs, see ``ending.py``.
    """

    engine: str
    started_at: int
    job: str = EVERYTHING
    finished_at: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    groups_touched: int = 0
    bytes_returned: int = 0
    archived: int = 0
    archive_bytes_returned: int = 0
    held: int = 0
    overdue_groups: int = 0
    overdue_seconds: int = 0
    error: str = ""
    cpu_seconds: float = 0.0
    lock_seconds: float = 0.0
    longest_lock_seconds: float = 0.0
    differing: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """The outcome: ok or failed."""
        return "failed" if self.error else "ok"

    def to_mapping(self) -> dict[str, Any]:
        """Return the report in the form of the log and the history."""
        values = {name: value for name, value in vars(self).items() if name not in ("counts", "differing")}
        return values | {"outcome": self.outcome, "deleted": {rule: self.counts[rule] for rule in REPORTED}}
