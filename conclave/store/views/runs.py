"""The history of cleanup runs, for operators."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from conclave.retention.advice import Advice, Cost, advise
from conclave.retention.jobs import EVERYTHING, Scope

HISTORY_ROWS = 1000
"""The history has the last 1000 runs."""

_COLUMNS = ("engine", "started_at", "finished_at", "outcome", "error")


@dataclass(frozen=True)
class Run:
    """A run in the history. Times are Unix seconds.

    ``cpu_seconds``, ``lock_seconds`` and ``longest_lock_seconds``: see ``Cost``.
    """

    engine: str
    started_at: int
    finished_at: int
    outcome: str
    """``ok`` or ``failed``."""
    error: str
    groups_touched: int = 0
    bytes_returned: int = 0
    archived: int = 0
    archive_bytes_returned: int = 0
    deleted: Mapping[str, int] = field(default_factory=dict)
    """The number of deleted rows by rule."""
    job: str = EVERYTHING
    held: int = 0
    overdue_groups: int = 0
    overdue_seconds: int = 0
    cpu_seconds: float = 0.0
    lock_seconds: float = 0.0
    longest_lock_seconds: float = 0.0


_COUNTS = tuple(each.name for each in fields(Run) if each.name not in _COLUMNS)
"""Fields of a run that are stored in the JSON column ``counts``."""

_RUNS = f"SELECT {', '.join(_COLUMNS)}, counts FROM cleanup_runs"


def add(connection: sqlite3.Connection, run: Run) -> None:
    """Add a run, and delete all but the last HISTORY_ROWS."""
    counts = {name: getattr(run, name) for name in _COUNTS}
    run_id = connection.execute(
        "INSERT INTO cleanup_runs (started_at, finished_at, engine, outcome, error, counts) VALUES (?, ?, ?, ?, ?, ?)",
        (run.started_at, run.finished_at, run.engine, run.outcome, run.error, json.dumps(counts)),
    ).lastrowid
    connection.execute("DELETE FROM cleanup_runs WHERE run_id <= ?", ((run_id or 0) - HISTORY_ROWS,))


def last(connection: sqlite3.Connection, limit: int) -> list[Run]:
    """Return the last ``limit`` runs, newest first."""
    return [_run(row) for row in connection.execute(f"{_RUNS} ORDER BY run_id DESC LIMIT ?", (limit,))]


def newest(connection: sqlite3.Connection) -> int:
    """Return the number of the last run; 0 if there is none."""
    return int(connection.execute("SELECT ifnull(max(run_id), 0) FROM cleanup_runs").fetchone()[0])


def after(connection: sqlite3.Connection, number: int) -> list[Run]:
    """Return the runs with numbers greater than ``number``, oldest first."""
    return [_run(row) for row in connection.execute(f"{_RUNS} WHERE run_id > ? ORDER BY run_id", (number,))]


def last_successes(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the start of the last successful run of each job, Unix seconds, by the name of the job."""
    rows = connection.execute(
        "SELECT counts ->> '$.job', max(started_at) FROM cleanup_runs WHERE outcome = 'ok' GROUP BY 1",
    )
    return {row[0]: row[1] for row in rows}


def advices(history: Iterable[Run], jobs: Iterable[tuple[Scope, int]], now: int) -> list[Advice]:
    """Return advice on the interval of each job, based on its runs in the history. Runs after ``now`` do not count."""
    successful_runs = [run for run in history if run.outcome == "ok" and run.started_at <= now]
    advice_list = []
    for scope, interval in jobs:
        setting = "cleanup_interval" if scope.is_housekeeping else f"the interval of the purge job {scope.name}"
        advice_list.append(
            advise(scope.name, setting, [_cost(run) for run in successful_runs if run.job == scope.name], interval)
        )
    return advice_list


def _cost(run: Run) -> Cost:
    rows = sum(run.deleted.values())
    costs = run.cpu_seconds, run.lock_seconds, run.longest_lock_seconds
    return Cost(run.started_at, run.finished_at, rows, *costs)


def _run(row: sqlite3.Row) -> Run:
    *columns, counts = row
    return Run(*columns, **{name: count for name, count in json.loads(counts).items() if name in _COUNTS})
