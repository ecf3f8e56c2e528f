"""What Spark waits for may never come: once its time is over, a run kills Java, and says so."""

import subprocess
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from conclave.clock import FakeClock
from spark import environment, run
from spark.environment import RunEnvironment
from tests.support.archived import DAY
from tests.support.backups import Backed

PATIENCE = 60.0
"""Seconds until a test fails that waits."""


def test_a_run_that_spark_holds_up_fails_once_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose jobs wait for workers of a cluster. Here another program that does not end is in place of Java."""
    store = Backed(tmp_path)
    store.send(store.add_group(DAY), 3)
    store.now += 2 * DAY
    config = replace(
        store.config,
        cleanup=replace(store.config.cleanup, engine="sql", max_run_time=1),
        archive=replace(store.config.archive, after=-1),
    )
    java = subprocess.Popen(["sleep", str(2 * PATIENCE)], stdin=subprocess.PIPE)

    def wait_for_java(*_: Any) -> None:
        java.wait(PATIENCE)
        raise Py4JNetworkError("Answer from Java side is empty")

    with monkeypatch.context() as broken, closing(RunEnvironment(config, FakeClock(store.now))) as engine:
        broken.setattr(environment, "HANG_SECONDS", 0.01)
        broken.setattr(RunEnvironment, "make_plan", wait_for_java)
        broken.setattr(engine, "_spark", object())
        broken.setattr(engine._java, "_process", java)
        report = run.clean_up(engine)
        assert report.error.startswith("RunTooLongError: max_run_time (1s) was over, and Spark did not stop")
        assert not engine.is_sound(), "the server starts another worker"
    with closing(RunEnvironment(config, FakeClock(store.now))) as engine:
        assert run.clean_up(engine).error == ""
    assert store.query("SELECT count(*) FROM messages") == [(0,)]


def test_a_run_tells_its_own_error_where_java_is_not_ours_to_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under spark-submit."""
    store = Backed(tmp_path)
    cleanup = replace(store.config.cleanup, engine="sql", max_run_time=1)
    config = replace(store.config, cleanup=cleanup, archive=replace(store.config.archive, after=-1))
    with monkeypatch.context() as broken, closing(RunEnvironment(config, FakeClock(store.now))) as engine:
        looked = threading.Event()
        own_java = engine._java

        def fail_late(*_: Any) -> None:
            assert looked.wait(PATIENCE)
            raise ValueError("something else")

        def runs() -> bool:
            looked.set()
            return type(own_java).runs(own_java)

        broken.setattr(environment, "HANG_SECONDS", 0.01)
        broken.setattr(RunEnvironment, "make_plan", fail_late)
        broken.setattr(engine, "_spark", object())
        broken.setattr(own_java, "runs", runs)
        assert run.clean_up(engine).error == "ValueError: something else"


def test_spark_that_is_started_when_the_time_is_over_is_killed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Backed(tmp_path)
    config = replace(store.config, cleanup=replace(store.config.cleanup, max_run_time=0))
    monkeypatch.setattr(environment, "HANG_SECONDS", 0.01)
    with subprocess.Popen(["sleep", str(2 * PATIENCE)], stdin=subprocess.PIPE) as java:
        engine = RunEnvironment(config, FakeClock(store.now))
        try:
            with engine.in_time():
                threading.Event().wait(0.05)  # nothing is there to be killed at first
                monkeypatch.setattr(engine._java, "_process", java)
                monkeypatch.setattr(engine, "_spark", object())
                java.wait(PATIENCE)
            assert engine.broken_off
        finally:
            java.kill()
