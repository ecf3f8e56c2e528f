"""Starts the Java process of a Spark session, which ends with this process, and logs what it writes.

A line of Java or Spark becomes an event of the log, without content of messages, ids and noise.
"""

import logging
import os
import re
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from conclave.archive.faults import one_line
from conclave.logs.setup import get_logger
from conclave.system.child_process import parent_bound_command
from spark.cluster import PAGE
from spark.java_check import WITHOUT_TRACES

log = get_logger(__name__)

MOST_CHARACTERS = 300
"""At most 300 characters of a line are logged: errors of Spark may have a whole plan in them."""

_OF_LOG4J = re.compile(r"(DEBUG|INFO|WARN|ERROR|FATAL) ([\w$.]+): (.*)")
"""A line as ``log4j2.properties`` has it: level, class, message."""

_NOISE = (
    "WARNING: Using incubator modules",  # Spark asks for one in every start
    "WARNING: A terminally deprecated method",
    "WARNING: sun.misc.Unsafe",
    "WARNING: Please consider reporting this to the maintainers",
    "Picked up JAVA_TOOL_OPTIONS",
    "Picked up _JAVA_OPTIONS",
    "Using Spark's default log4j profile",
    "Setting default log level",
    "To adjust logging level",
    "\tat ",
    "\t... ",
)
"""How lines begin that tell an operator nothing."""

_CLIENT = ("java_gateway", "clientserver")
"""The modules of py4j that log."""

_HIDDEN = (
    (re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\b[0-9a-fA-F]{16,}\b"), "…"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "'…'"),
    (re.compile(r"(?<![\w.:/-])(?:file:)?/{1,3}[^\s,;:)\]]+"), "PATH"),
    (re.compile(r"[A-Za-z0-9+/]{40,}=*"), "…"),
)
"""What is not logged: ids and hashes, what is quoted (values of rows), paths, what may be a body in base64."""


class Told(NamedTuple):
    """A line that is worth an event."""

    is_error: bool
    source: str
    message: str


def read_line(line: str) -> Told | None:
    """Return what a line of Java tells; None for noise, and for what is no warning. Pure."""
    text = line.rstrip()
    if not text.strip() or text.startswith(_NOISE):
        return None
    found = _OF_LOG4J.fullmatch(text)
    if found is None:
        return Told(is_error=False, source="java", message=_shown(text))
    level, source, message = found.groups()
    if level in ("DEBUG", "INFO"):
        return None
    return Told(level in ("ERROR", "FATAL"), source, _shown(message))


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether a record is not one of py4j's own.

    It logs each call that fails by the root logger, with a traceback, and raises the error as well: the caller
    tells it, in the words of this log.
    """
    return record.module not in _CLIENT


def follow(output: IO[bytes]) -> None:
    """Log what a Java process writes, until it ends, in a thread of its own; and nothing of what its client writes."""
    logging.getLogger().addFilter(_is_ours)
    threading.Thread(target=_follow, args=(output,), daemon=True).start()


def _follow(output: Iterable[bytes]) -> None:
    for line in output:
        told = read_line(line.decode(errors="replace"))
        if told and told.is_error:
            log.error("spark_log", source=told.source, message=told.message)
        elif told:
            log.warning("spark_log", source=told.source, message=told.message)


def _shown(message: str) -> str:
    for pattern, replacement in _HIDDEN:
        message = pattern.sub(replacement, message)
    return message if len(message) <= MOST_CHARACTERS else f"{message[: MOST_CHARACTERS - 1]}…"


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
            parent_bound_command(*command),
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
            follow(self._process.stdout)
        try:
            return _wait_for(self._process, told)
        except BaseException:
            self.end()
            raise

    def has_ended(self) -> bool:
        """Return whether Java was started by this process and has ended."""
        return self._process is not None and self._process.poll() is not None

    def runs(self) -> bool:
        """Return whether Java was started by this process and has not ended."""
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


_ADVICE = (
    (
        "stopped SparkContext",
        f"Spark's master does not answer, or does not take this driver, as without the same secret; see {PAGE}",
    ),
)
"""What an error of Spark has in it, and what to say instead."""

_MEMORY = "Is [spark] driver_memory right for this machine?"


def why_not_started(error: Exception) -> str:
    """Return one line on ``error``, with which a session could not be made.

    The memory is asked about only where it may be to blame: if Java has ended at once, or says so itself.
    """
    reason = one_line(error)
    for sign, advice in _ADVICE:
        if sign in reason:
            return advice
    return f"{reason} {_MEMORY}" if isinstance(error, JavaStartError) or "memory" in reason.lower() else reason
