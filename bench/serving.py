"""Starting, stopping and idling."""

import time
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

from bench import stores
from bench.figures import Figure, single, spread
from bench.process import Server, cpu_of_children, descendants, name, proportional_mb, resident_mb
from conclave.config.settings import Config
from tests.support.operators import ADMIN, run_at_once

STARTS, ASKS = 5, 3
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
    """Memory between runs, with the default settings; and how long it takes to wake cleanup."""
    with Server(Config(database_path=str(folder / "conclave.db")), ADMIN + '[log]\nlevel = "debug"\n') as server:
        server.wait_for("cleanup_asleep")
        time.sleep(IDLE_SECONDS)
        pids = [server.process.pid, *descendants(server.process.pid)]
        resident, proportional = sum(map(resident_mb, pids)), sum(map(proportional_mb, pids))
        without = [_ask(server) for _ in range(ASKS)]
        woken = []
        for _ in range(ASKS):
            stores.expire_session(folder / "conclave.db")
            woken.append(_ask(server))
        gone = server.stop()
    return [
        single("resident: server and all its processes", resident, "MB", most=150),
        single("the same, what is shared counted once (PSS)", proportional, "MB"),
        spread("asked to run begun, asleep, nothing due", [each.began for each in without], "s"),
        spread("its processor time, from asleep to asleep", [each.cpu for each in without], "s"),
        spread("asked to run begun, asleep, something due", [each.began for each in woken], "s"),
        spread("of which Java starts", [each.java for each in woken], "s"),
        spread("its processor time, from asleep to asleep", [each.cpu for each in woken], "s"),
        single("resident meanwhile: worker", max(each.memory.get("python", 0.0) for each in woken), "MB"),
        single("resident meanwhile: JVM", max(each.memory.get("java", 0.0) for each in woken), "MB"),
        single("SIGTERM to exit, asleep", gone, "s", most=5),
    ]


class Asked(NamedTuple):
    """What came of waking cleanup: seconds until the run began, of these of Java's start, and processor seconds."""

    began: float
    java: float
    cpu: float
    memory: dict[str, float]


def _ask(server: Server) -> Asked:
    """Have a server whose cleanup worker has exited run all jobs now."""
    cpu, url = cpu_of_children(server.process.pid), server.wait_for("listening")["admin_url"]
    after, began = len(server.events()), time.monotonic()
    run_at_once(url)
    server.wait_for("cleanup_began", after)
    took = time.monotonic() - began
    memory = {name(pid): resident_mb(pid) for pid in descendants(server.process.pid)}
    server.wait_for("cleanup_asleep", after)
    java = [each["seconds"] for each in server.events()[after:] if each["event"] == "cleanup_java_started"]
    return Asked(took, sum(java), cpu_of_children(server.process.pid) - cpu, memory)
