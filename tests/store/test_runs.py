"""The history of runs: bounded, and readable whichever version wrote it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from conclave.store.engine import sqlite
from conclave.store.views import runs
from conclave.store.views.runs import HISTORY_ROWS, Run
from tests.support import stores

RUN = Run("sql", 10, 12, "ok", "", 1, 4096, 2, 100, {"expired": 3})


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    stores.prepare(tmp_path / "hot.db")
    with closing(sqlite.connect(tmp_path / "hot.db")) as opened:
        yield opened


def test_the_last_runs_are_kept_the_newest_first(connection: sqlite3.Connection) -> None:
    for number in range(HISTORY_ROWS + 5):
        runs.add(connection, replace(RUN, started_at=number))
    kept = runs.last(connection, 2 * HISTORY_ROWS)
    assert [run.started_at for run in kept] == list(range(HISTORY_ROWS + 4, 4, -1))
    assert runs.last(connection, 1) == [replace(RUN, started_at=HISTORY_ROWS + 4)]


def test_a_run_of_another_version_is_read_as_far_as_both_know_it(connection: sqlite3.Connection) -> None:
    connection.execute(
        "INSERT INTO cleanup_runs (started_at, finished_at, engine, outcome, error, counts) VALUES (1, 2, 'spark',"
        """ 'failed', 'why', '{"groups_touched": 4, "bytes_returned": 5, "deleted": {"expired": 6}, "later": 7}')"""
    )
    assert runs.last(connection, 1) == [Run("spark", 1, 2, "failed", "why", 4, 5, deleted={"expired": 6})]
