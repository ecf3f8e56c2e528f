"""Starts the Java process of a Spark session, so that it ends with this process."""

import os
import signal
import struct
import subprocess
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from conclave.system.child_process import tied
from spark import java_log
from spark.java_check import WITHOUT_TRACES

NICENESS = 10
"""Java runs with niceness 10.

So the holder of the database's lock gets the processor first, and so does the server.
"""

LOOK_SECONDS = 0.05
"""While Java starts, this process looks every 0.05 s whether it is ready."""


class JavaStartError(Exception):
    """Java ended before it could be used."""


class Java:
    """One Java process, started as PySpark starts it, but tied to this process.

    Under spark-submit it is never started, and the other methods do nothing.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, spark_home: Path, settings: Mapping[str, str], work: Path, held: Collection[int]
    ) -> tuple[str, str]:
        """Start Java; return the port at which it listens on loopback, and its secret.

        Call it in a thread that lives as long as this process: Java ends with that thread. Java has the descriptors
        ``held`` open as long as it lives; they may carry locks. Raises JavaStartError or OSError.
        """
        told = work / "gateway"
        command = [
            *("nice", "-n", str(NICENESS), str(spark_home / "bin" / "spark-submit")),
            *(each for name, value in settings.items() for each in ("--conf", f"{name}={value}")),
            "pyspark-shell",
        ]
        self._process = subprocess.Popen(  # noqa: S603 - the program comes with Spark
            tied(*command),
            stdin=subprocess.PIPE,  # Java ends with this pipe too, but not while it starts
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ
            | {
                "SPARK_CONNECT_MODE": "0",
                "SPARK_LAUNCHER_OPTS": " ".join(WITHOUT_TRACES),  # of the Java that puts the command together
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told),
            },
            pass_fds=held,
        )
        if self._process.stdout:  # it was asked for as a pipe
            java_log.follow(self._process.stdout)
        try:
            return _wait_for(self._process, told)
        except BaseException:
            self.end()
            raise

    def has_ended(self) -> bool:
        """Tell whether Java was started by this process and has ended."""
        return self._process is not None and self._process.poll() is not None

    def runs(self) -> bool:
        """Tell whether Java was started by this process and has not ended."""
        return self._process is not None and self._process.poll() is None

    def cpu_seconds(self) -> float:
        """Return for how long Java has worked so far; 0 if it does not run, or where the system does not tell."""
        if not self._process:
            return 0.0
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return 0.0
        return sum(map(int, stat.rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def freeze(self) -> None:
        """Stop Java from writing anything more. ``kill`` has to follow soon."""
        if self._process:
            self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """Kill Java, and do not wait until it has ended.

        It would die with this process in any case, but for the moment before it has asked the kernel for that: stopped
        there, it would stay for ever.
        """
        if self._process:
            self._process.kill()

    def end(self) -> None:
        """Kill Java, and wait until it has ended."""
        if self._process:
            if self._process.stdin:
                self._process.stdin.close()
            self._process.kill()
            self._process.wait()


def _wait_for(process: subprocess.Popen[bytes], told: Path) -> tuple[str, str]:
    """Return the port and the secret, which Java writes to ``told`` when it is ready. Raises JavaStartError."""
    while not told.exists():
        if process.poll() is not None:
            raise JavaStartError(f"Java ended with status {process.returncode}.")
        time.sleep(LOOK_SECONDS)
    text = told.read_bytes()
    told.unlink()
    port, length = struct.unpack(">ii", text[:8])
    return str(port), text[8 : 8 + length].decode()
