"""What a run did: the table on a terminal, the log line, the row in the history."""

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from spark import rules

HISTORY_ROWS = 1000
"""Runs kept in the history."""

_STORED = ("groups_touched", "bytes_returned", "archived", "archive_bytes_returned", "deleted", "brought_back")
"""What of a report the history has as its counts."""

_MEANINGS = {
    rules.EXPIRED: ("messages", "past their group's expiry"),
    rules.FETCHED: ("messages", "fetched by every member of a delete-after-fetch group"),
    rules.DELETED_GROUP: ("messages", "their group was deleted"),
    rules.DELETED_ACCOUNT: ("messages", "their sender's account was deleted"),
    rules.SESSIONS: ("sessions", "expired"),
    rules.INVITES: ("invites", "pending for longer than invite_ttl_seconds"),
}


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

    def to_mapping(self) -> dict[str, object]:
        """Return the report as a log line has it."""
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


def store(connection: sqlite3.Connection, report: Report) -> None:
    """Add a run to the history, which keeps the last HISTORY_ROWS."""
    shown = report.to_mapping()
    counts = {name: shown[name] for name in _STORED}
    run_id = connection.execute(
        "INSERT INTO cleanup_runs (started_at, finished_at, engine, outcome, error, counts) VALUES (?, ?, ?, ?, ?, ?)",
        (report.started_at, report.finished_at, report.engine, report.outcome, report.error, json.dumps(counts)),
    ).lastrowid
    connection.execute("DELETE FROM cleanup_runs WHERE run_id <= ?", ((run_id or 0) - HISTORY_ROWS,))


def show(report: Report, console: Console, *, dry: bool = False) -> None:
    """Print what went, and why; with ``dry``, what would go."""
    title = "Dry run, nothing was touched" if dry else "Cleanup run"
    table = Table(title=f"{title} ({report.engine}): {report.outcome}")
    table.add_column("what")
    table.add_column("why")
    table.add_column("would go" if dry else "deleted", justify="right")
    for rule in rules.RULES:
        table.add_row(*_MEANINGS[rule], f"{report.counts[rule]:,}")
    console.print(table)
    touched = f"{report.groups_touched:,} groups {'have something due' if dry else 'touched'}"
    console.print(touched if dry else f"{touched}, {report.bytes_returned:,} bytes returned to the disk")
    if report.archived:
        console.print(f"{report.archived:,} messages {'would move' if dry else 'moved'} to the archive")
    if report.archive_bytes_returned:
        console.print(f"{report.archive_bytes_returned:,} bytes returned by the archive")
    if report.brought_back:
        console.print(f"brought back from times to come: {_list(report.brought_back) or 'nothing'}")
    if report.error:
        console.print(f"error: {report.error}", style="red", soft_wrap=True)


def history(connection: sqlite3.Connection, limit: int) -> list[sqlite3.Row]:
    """Return the last ``limit`` runs, the newest first."""
    return connection.execute(
        "SELECT run_id, started_at, finished_at, engine, outcome, error, counts FROM cleanup_runs"
        " ORDER BY run_id DESC LIMIT ?",
        (limit,),
    ).fetchall()


def show_history(runs: list[sqlite3.Row], console: Console) -> None:
    """Print a line a run."""
    table = Table(title="Cleanup runs, the newest first")
    table.add_column("began (UTC)", no_wrap=True)
    table.add_column("seconds", justify="right")
    table.add_column("deleted")
    table.add_column("bytes returned", justify="right")
    table.add_column("engine")
    table.add_column("outcome")
    for run in runs:
        counts = json.loads(run["counts"])
        began = datetime.fromtimestamp(run["started_at"], UTC)
        done = _list(counts["deleted"])
        if brought_back := _list(counts.get("brought_back", {})):  # older runs know nothing of it
            done = f"{done or 'nothing'}; brought back: {brought_back}"
        table.add_row(
            f"{began:%Y-%m-%d %H:%M:%S}",
            str(run["finished_at"] - run["started_at"]),
            done or "nothing",
            f"{counts['bytes_returned']:,}",
            run["engine"],
            run["error"] or run["outcome"],
        )
    console.print(table)


def _list(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
