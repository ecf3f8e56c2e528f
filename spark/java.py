"""The Java process of a Spark session: started so that it cannot outlive this process."""

import os
import signal
import struct
import subprocess
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from conclave.system.tied import tied

NICENESS = 10
"""How far Java stands back: who holds the database's lock has the processor first, and so has the server."""

LOOK_SECONDS = 0.05


class JavaStartError(Exception):
    """Java ended before it could be used."""


class Java:
    """One Java process, as PySpark starts it, but tied to this process. Under spark-submit there is none of ours."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, spark_home: Path, settings: Mapping[str, str], work: Path, held: Collection[int]
    ) -> tuple[str, str]:
        """Start it, and return the port at which it listens on loopback, and its secret.

        To be called in a thread that lives as long as this process: the end of that thread is Java's.
        It has the descriptors ``held`` open as long as it lives: they may have locks. Raises JavaStartError, OSError.
        """
        told = work / "gateway"
        command = [
            *("nice", "-n", str(NICENESS), str(spark_home / "bin" / "spark-submit")),
            *(each for name, value in settings.items() for each in ("--conf", f"{name}={value}")),
            "pyspark-shell",
        ]
        self._process = subprocess.Popen(  # noqa: S603 - a program of Spark's
            tied(*command),
            stdin=subprocess.PIPE,  # its end would be that of Java too, but not while it starts
            env=os.environ | {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)},
            pass_fds=held,
        )
        try:
            return _wait_for(self._process, told)
        except BaseException:
            self.end()
            raise

    def has_ended(self) -> bool:
        """Tell whether it was started by this process, and is no more."""
        return self._process is not None and self._process.poll() is not None

    def freeze(self) -> None:
        """Let it write nothing more; for a process that is about to end, by which it dies."""
        if self._process:
            self._process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        """Kill it, and wait until it is no more."""
        if self._process:
            if self._process.stdin:
                self._process.stdin.close()
            self._process.kill()
            self._process.wait()


def _wait_for(process: subprocess.Popen[bytes], told: Path) -> tuple[str, str]:
    """Return the port and the secret that Java writes down in the end of its start. Raises JavaStartError."""
    while not told.exists():
        if process.poll() is not None:
            raise JavaStartError(f"Java ended with status {process.returncode}.")
        time.sleep(LOOK_SECONDS)
    text = told.read_bytes()
    told.unlink()
    port, length = struct.unpack(">ii", text[:8])
    return str(port), text[8 : 8 + length].decode()
