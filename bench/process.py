"""Processes under measurement: the server, and cleanup in a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from conclave.clock import FakeClock
from conclave.config.settings import Config
from spark.environment import RunEnvironment
from spark.run import clean_up

PATIENCE_SECONDS = 180.0


class Server:
    """A ``conclave serve`` of its own, from its start to the end of the block."""

    def __init__(self, config: Config, more: str = "", interval: str = "1h") -> None:
        """``more``: further tables of its settings. ``interval``: from one cleanup run to the next."""
        folder = config.database.parent
        self._log = folder / "server.log"
        self.file = file = folder / "conclave.toml"
        file.write_text(
            f'cleanup_interval = "{interval}"\n'
            f'listen_address = "127.0.0.1"\nlisten_port = 0\ndatabase_path = "{config.database}"\n'
            f'[cleanup]\nengine = "{config.cleanup.engine}"\n[admin]\nlisten_port = 0\n{more}'
        )
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "conclave", "serve", "--config", str(file)], cwd=folder, stderr=log
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def events(self) -> list[dict[str, Any]]:
        """What it has logged so far."""
        found = []
        for line in self._log.read_text().splitlines():
            with suppress(json.JSONDecodeError):  # not every line is the server's own, or whole yet
                logged = json.loads(line)
                if isinstance(logged, dict):
                    found.append(logged)
        return found

    def wait_for(self, event: str, after: int = 0) -> dict[str, Any]:
        """Wait for a line of the log and return it. ``after``: behind so many lines."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            for logged in self.events()[after:]:
                if logged.get("event") == event:
                    return logged
            time.sleep(0.002)
        raise RuntimeError(f"no {event!r} from the server:\n{self._log.read_text()}")

    @cached_property
    def url(self) -> str:
        return str(self.wait_for("listening")["url"])

    def stop(self) -> float:
        """End the server and return the seconds that it took; nothing that it started may be left."""
        others = descendants(self.process.pid)
        began = time.monotonic()
        self.process.terminate()
        self.process.wait(PATIENCE_SECONDS)
        gone = time.monotonic() - began
        while left := [pid for pid in others if runs(pid)]:
            if time.monotonic() - began > PATIENCE_SECONDS:
                raise RuntimeError(f"the server left processes behind: {left}")
            time.sleep(0.01)
        return gone


class Cleaning:
    """Cleanup runs in one process, with one warm Spark session if the engine is Spark."""

    def __init__(self, config: Config, environment: Mapping[str, str] | None = None) -> None:
        """``environment``: more of it for this process."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | (environment or {}),
            text=True,
        )
        self._ask(config.to_json())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, now: int) -> dict[str, Any]:
        """Do a run as if at ``now``; return its report, and the ``seconds`` that it took."""
        report = self._ask(str(now))
        if report["error"]:
            raise RuntimeError(report["error"])
        return report

    def _ask(self, line: str) -> dict[str, Any]:
        if not (self._process.stdin and self._process.stdout):
            raise RuntimeError("no pipes")
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def children(pid: int) -> list[int]:
    """The processes that ``pid`` has started and not collected, by any of its threads; none if it has ended."""
    found: list[int] = []
    with suppress(OSError):  # it may end at any moment
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # so may a thread of one that goes on
                found += [int(each) for each in (task / "children").read_text().split()]
    return found


def descendants(pid: int) -> list[int]:
    """The processes below ``pid``; not the remains of spark-submit's shell, which the JVM does not collect."""
    return [below for each in children(pid) if runs(each) for below in (each, *descendants(each))]


def resident_mb(pid: int) -> float:
    line = next(each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e6


def proportional_mb(pid: int) -> float:
    """What a process has in memory, with its share of what others have in common with it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(each for each in lines if each.startswith("Pss:")).split()[1]) * 1024 / 1e6


def cpu_seconds(pid: int) -> float:
    """Processor seconds of a process so far, user and system, with all of its threads."""
    return _seconds(pid, 11)


def cpu_of_children(pid: int) -> float:
    """Processor seconds of all processes that ``pid`` has started and that have ended, and of theirs."""
    return _seconds(pid, 13)


def _seconds(pid: int, field: int) -> float:
    """Return the sum of two fields of /proc/PID/stat, counted from the one behind the program's name."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[field : field + 2]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _clean() -> None:
    """The process of a Cleaning: the configuration is its first line, then a line a run."""
    tell = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    clock = FakeClock()
    engine = RunEnvironment(Config.from_json(sys.stdin.readline()), clock)
    began = time.perf_counter()
    engine.warm_up()
    tell.write(json.dumps({"seconds": time.perf_counter() - began}) + "\n")
    for line in sys.stdin:
        clock.seconds = int(line)
        began = time.perf_counter()
        report = clean_up(engine).to_mapping()
        tell.write(json.dumps(report | {"seconds": time.perf_counter() - began}) + "\n")
    engine.close()


if __name__ == "__main__":
    _clean()
