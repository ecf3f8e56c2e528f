"""`conclave cleanup advise`: what the history of real runs says, and what one without costs does."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from conclave.cli.main import main
from conclave.clock import FakeClock, SystemClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.retention.jobs import ALL
from conclave.store.engine import sqlite
from conclave.store.resources import state
from conclave.store.views import runs
from conclave.store.views.runs import Run
from spark import run
from spark.environment import RunEnvironment
from tests.support import stores


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "conclave.toml").write_text(f'database_path = "{tmp_path}/hot.db"\n[cleanup]\nengine = "sql"\n')
    config = Config(database_path=str(tmp_path / "hot.db"), cleanup=CleanupConfig(engine="sql", disk_reserve=0))
    stores.prepare(config.database)
    with closing(sqlite.connect(config.database)) as connection, sqlite.write_transaction(connection):
        state.begin_serving(connection, config.policy, SystemClock().read())
    return config


def advised(config: Config) -> str:
    file = config.database.parent / "conclave.toml"
    done = CliRunner().invoke(main, ["cleanup", "advise", "--config", str(file)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_without_runs_it_says_so(config: Config) -> None:
    assert advised(config) == "No advice on cleanup_interval yet: it needs 2 successful runs.\n"


def test_it_goes_by_the_costs_in_the_history(config: Config) -> None:
    now = SystemClock().read().wall
    with closing(sqlite.connect(config.database)) as connection:
        for ago in range(10, 0, -1):
            began = now - 3600 * ago
            good = Run("sql", began, began + 1, "ok", "", deleted={"expired": 60})
            good = replace(good, cpu_seconds=0.25, lock_seconds=0.05, longest_lock_seconds=0.009)
            runs.add(connection, good)
            runs.add(connection, replace(good, finished_at=began + 500, outcome="failed", error="why"))
        runs.add(connection, Run("sql", now + 9000, now + 9900, "ok", "", deleted={"expired": 10**9}))
        connection.commit()
    shown = advised(config)
    assert "everything: estimated from 10 runs" in shown
    assert "1h (now)" in shown
    assert "250 ms of CPU time, write lock for 50 ms, at most 9 ms at a time" in shown
    assert shown.splitlines()[-1].startswith('Set cleanup_interval to "1min": expired messages then stay on disk')


def test_runs_note_what_they_cost(config: Config) -> None:
    with closing(RunEnvironment(config, FakeClock(SystemClock().read().wall + 1))) as engine:
        done = run.clean_up(engine, scope=ALL)
    assert done.error == ""
    assert 0 < done.longest_lock_seconds <= done.lock_seconds
    assert done.cpu_seconds > 0
    with closing(sqlite.connect(config.database)) as connection:
        [stored] = runs.last(connection, 1)
    assert (stored.cpu_seconds, stored.lock_seconds) == (done.cpu_seconds, done.lock_seconds)
