"""Starts Spark clusters on loopback, by the commands of docs/operations/cluster.md as they are there.

Only folders and hosts are others: each host of the page is an address of its own in 127.0.0.0/8.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from conclave.system.child_process import parent_bound_command

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "operations" / "cluster.md"
PATIENCE_SECONDS = 180.0

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Java with which it is soon ready: what is tested, not measured, is not worth its better compiler."""

_KEPT = {"PATH", "HOME", "JAVA_HOME", "LANG"}
"""What the commands get of this process's environment: from a timer they get no more."""


def commands() -> dict[str, str]:
    """Return what the page has one paste, by what it is for, in the page's order."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return dict(zip(("settings", "master", "worker", "run"), blocks, strict=True))


class Daemon:
    """A process of Spark's, and all that it has started: they are one session."""

    def __init__(self, folder: Path, script: str, environment: Mapping[str, str]) -> None:
        """``folder``: that of its host. The thread that makes it has to live as long as it does."""
        self.folder = folder
        self._log = folder / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                parent_bound_command("bash", "-euo", "pipefail", "-c", script),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for(self, text: str) -> None:
        """Wait until its log has ``text``. Raises RuntimeError if it ends before, or after too long a time."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self._log.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no {text!r} from {self.folder.name}:\n{self._log.read_text()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it, and what it has started, at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End it as a service manager does. An executor ends with its worker."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE_SECONDS)


class Cluster:
    """A master and some workers, from the start to the end of the block."""

    def __init__(self, folder: Path, workers: int, number: int = 0, *, java: str = "") -> None:
        """Take ``workers`` of one core; ``number`` is another one for each cluster of this process.

        ``java``: options of all processes of Java.
        """
        self._folder = folder
        self._workers = workers
        self._number = number
        self.environment = {name: value for name, value in os.environ.items() if name in _KEPT}
        self.environment["SPARK_WORKER_CORES"] = "1"  # so that as many workers as there are cores have one each
        if java:
            self.environment["JAVA_TOOL_OPTIONS"] = java
        self.master = f"spark://{self._host(5)}:7077"
        self.settings = folder / "etc" / "spark"
        """The folder of the settings: ``SPARK_CONF_DIR``."""
        self.daemons: list[Daemon] = []
        """The master, then the workers."""

    def __enter__(self) -> Self:
        self.settings.mkdir(parents=True, mode=0o700)
        script = self.script("settings", self._folder)
        subprocess.run(["bash", "-euo", "pipefail", "-c", script], env=self.environment, check=True)
        try:
            self.start("master")
            for _ in range(self._workers):
                self.start("worker")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self.daemons):
            daemon.stop()

    def start(self, what: str) -> Daemon:
        """Start the master or one more worker, on a host of its own, and wait until it is ready."""
        folder = self._folder / f"host{len(self.daemons)}"
        folder.mkdir(mode=0o700)
        daemon = Daemon(folder, self.script(what, folder, worker=len(self.daemons)), self.environment)
        self.daemons.append(daemon)
        daemon.wait_for("I have been elected leader" if what == "master" else "Successfully registered with master")
        return daemon

    def script(self, what: str, folder: Path, *, worker: int = 1) -> str:
        """Return what the page says for ``what``, with ``folder`` for those of a host; workers count from 1."""
        places = {
            "/opt/conclave/.venv": sys.prefix,
            "/opt/conclave": str(ROOT),
            "/etc/conclave": str(self._folder / "etc"),
            "/var/lib/conclave-spark": str(folder),
            "10.0.0.5": self._host(5),
            "10.0.0.6": self._host(5 + worker),
        }
        return re.sub("|".join(map(re.escape, places)), lambda found: places[found[0]], commands()[what])

    def _host(self, number: int) -> str:
        """Return an address that no cluster of another process has."""
        return f"127.{1 + os.getpid() // 256 % 250}.{os.getpid() % 256}.{20 * self._number + number}"
