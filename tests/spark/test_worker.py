"""The worker's end."""

import contextlib
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from conclave.clock import SystemClock
from conclave.config.settings import Config
from spark import worker
from spark.environment import RunEnvironment

pytestmark = pytest.mark.system


class Halting:
    """An engine that takes its time to halt."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.began, self.go_on = threading.Event(), threading.Event()

    def halt(self) -> None:
        self.told.append("halts")
        self.began.set()
        assert self.go_on.wait(60)
        self.told.append("has halted")


def test_whoever_ends_the_worker_first_comes_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that ends, and a signal at the same time: the second must not leave files half removed."""

    def leave(_: int) -> None:
        engine.told.append("ends")
        raise SystemExit

    def end() -> None:
        with contextlib.suppress(SystemExit):
            worker._end(engine)

    monkeypatch.setattr(os, "_exit", leave)
    engine: Any = Halting()
    first, second = (threading.Thread(target=end) for _ in range(2))
    first.start()
    assert engine.began.wait(60)
    second.start()
    second.join(0.2)  # where it would not wait, it would begin now
    engine.go_on.set()
    first.join()
    second.join()
    assert engine.told[:3] == ["halts", "has halted", "ends"]


def test_a_java_that_is_not_tied_yet_does_not_outlive_the_worker(tmp_path: Path) -> None:
    """Stopped before it has asked the kernel to be killed with its parent, nothing else would end it."""
    engine = RunEnvironment(Config(database_path=str(tmp_path / "conclave.db")), SystemClock())
    with subprocess.Popen(["sleep", "600"]) as untied:
        engine._java._process = cast(Any, untied)
        engine.halt()
        assert untied.wait(60) == -signal.SIGKILL
