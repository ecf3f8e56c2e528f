"""Starting, stopping and idling."""

import time
from pathlib import Path
from urllib.request import urlopen

from bench.figures import Figure, single, spread
from bench.process import Server, descendants, name, resident_mb
from conclave.config.settings import Config

STARTS = 5
IDLE_SECONDS = 20


def start(folder: Path) -> list[Figure]:
    """Each start on a fresh directory, and a stop soon after: while Spark warms up."""
    answered, gone = [], []
    for n in range(STARTS):
        fresh = folder / str(n)
        fresh.mkdir()
        began = time.monotonic()
        with Server(Config(database_path=str(fresh / "conclave.db"))) as server:
            urlopen(f"{server.url}/healthz").read()
            answered.append(time.monotonic() - began)
            time.sleep(1)  # let the worker get as far as starting Java
            gone.append(server.stop())
    return [
        spread("start to the first answer", answered, "s", most=1.5),
        spread("SIGTERM to exit, Spark warming up", gone, "s", most=5),
    ]


def idle(folder: Path) -> list[Figure]:
    """Memory once Spark is warm and has done its first run."""
    began = time.monotonic()
    with Server(Config(database_path=str(folder / "conclave.db"))) as server:
        server.wait_for("cleanup_ready")
        ready = time.monotonic() - began
        server.wait_for("cleanup_run")
        first_run = time.monotonic() - began
        time.sleep(IDLE_SECONDS)
        used = resident_mb(server.process.pid)
        others = [(name(pid), resident_mb(pid)) for pid in descendants(server.process.pid)]
        gone = server.stop()
    return [
        single("resident: server", used, "MB", most=120),
        *(single(f"resident: {'JVM' if each == 'java' else 'cleanup worker'}", size, "MB") for each, size in others),
        single("start to a warm Spark session", ready, "s"),
        single("start to the end of the first cleanup run", first_run, "s"),
        single("SIGTERM to exit, Spark idle", gone, "s", most=5),
    ]
