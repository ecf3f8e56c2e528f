"""What a run did."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from spark import rules


@dataclass
class Report:
    """One run: times in Unix seconds; ``counts`` has the rows that went by each rule, from the archive too.

    ``archived`` messages moved to the archive. ``brought_back``: by table, rows with times ahead of a clock that was
    accepted.
    """

    engine: str
    started_at: int
    finished_at: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    groups_touched: int = 0
    bytes_returned: int = 0
    archived: int = 0
    archive_bytes_returned: int = 0
    brought_back: Counter[str] = field(default_factory=Counter)
    error: str = ""

    @property
    def outcome(self) -> str:
        """Ok or failed."""
        return "failed" if self.error else "ok"

    def to_mapping(self) -> dict[str, Any]:
        """Return the report as a log line has it, and as the history keeps it."""
        return {
            "engine": self.engine,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "outcome": self.outcome,
            "error": self.error,
            "groups_touched": self.groups_touched,
            "bytes_returned": self.bytes_returned,
            "archived": self.archived,
            "archive_bytes_returned": self.archive_bytes_returned,
            "deleted": {rule: self.counts[rule] for rule in rules.RULES},
            "brought_back": dict(+self.brought_back),
        }
