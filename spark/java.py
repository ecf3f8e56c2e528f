"""Starts the Java process of a Spark session, which ends with this process, and logs its output.

Each line becomes a log event. Message content, ids and useless lines are omitted.
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
from spark.requirements import PAGE, WITHOUT_TRACES

log = get_logger(__name__)

MAX_CHARACTERS = 300
"""The most characters of a line to log: errors of Spark may include a whole plan."""

_LOG4J_LINE = re.compile(r"(DEBUG|INFO|WARN|ERROR|FATAL) ([\w$.]+): (.*)")
"""A line in the format of ``log4j2.properties``: level, class, message."""

_NOISE = (
    "WARNING: Using incubator modules",  # Spark loads one at every start
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
"""The start of lines that are useless to operators."""

_CLIENT = ("java_gateway", "clientserver")
"""The modules of py4j that log."""

_REDACTIONS = (
    (re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\b[0-9a-fA-F]{16,}\b"), "…"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "'…'"),
    (re.compile(r"(?<![\w.:/-])(?:file:)?/{1,3}[^\s,;:)\]]+"), "PATH"),
    (re.compile(r"[A-Za-z0-9+/]{40,}=*"), "…"),
)
"""The patterns to replace before logging: ids, hashes, quoted values, paths, and possible bodies in base64."""


class JavaLogLine(NamedTuple):
    """A line to log."""

    is_error: bool
    source: str
    message: str


def parse_line(line: str) -> JavaLogLine | None:
    """Parse a line of Java's output; return None for noise and lines below the level of a warning."""
    text = line.rstrip()
    if not text.strip() or text.startswith(_NOISE):
        return None
    match = _LOG4J_LINE.fullmatch(text)
    if match is None:
        return JavaLogLine(is_error=False, source="java", message=_redacted(text))
    level, source, message = match.groups()
    if level in ("DEBUG", "INFO"):
        return None
    return JavaLogLine(level in ("ERROR", "FATAL"), source, _redacted(message))


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Return whether a record does not come from py4j.

    py4j logs each failed call with a traceback by the root logger, and also raises the error, which the caller logs.
    """
    return record.module not in _CLIENT


def follow(output: IO[bytes]) -> None:
    """Log the output of a Java process in a thread, and suppress the log of py4j."""
    logging.getLogger().addFilter(_is_not_py4j)
    threading.Thread(target=_follow, args=(output,), daemon=True).start()


def _follow(output: Iterable[bytes]) -> None:
    for line in output:
        parsed = parse_line(line.decode(errors="replace"))
        if parsed and parsed.is_error:
            log.error("spark_log", source=parsed.source, message=parsed.message)
        elif parsed:
            log.warning("spark_log", source=parsed.source, message=parsed.message)


def _redacted(message: str) -> str:
    for pattern, replacement in _REDACTIONS:
        message = pattern.sub(replacement, message)
    return message if len(message) <= MAX_CHARACTERS else f"{message[: MAX_CHARACTERS - 1]}…"


NICENESS = 10
"""The niceness of Java, so that the server and the holder of the database lock take precedence."""

POLL_SECONDS = 0.05
"""How often to check whether Java is ready while it starts."""


class JavaStartError(Exception):
    """Java ended before it was ready."""


class Java:
    """A Java process, started like PySpark's, that ends with this process.

    Under spark-submit it is not started, and the methods do nothing.
    """

    def __init__(self) -> None:
        """Create the object without starting Java."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, spark_home: Path, settings: Mapping[str, str], work: Path, held: Collection[int]
    ) -> tuple[str, str]:
        """Start Java; return its port on loopback, and its secret. Raises JavaStartError or OSError.

        Call it in a thread that runs until this process exits, since Java ends with the thread. ``held``: descriptors
        that Java keeps open, which may hold locks.
        """
        info = work / "gateway"
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
                "SPARK_LAUNCHER_OPTS": " ".join(WITHOUT_TRACES),  # for the Java that builds the command
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info),
            },
            pass_fds=held,
        )
        if self._process.stdout:  # always a pipe
            follow(self._process.stdout)
        try:
            return _wait_for(self._process, info)
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
        """Return the CPU seconds of Java so far; 0 if unknown."""
        if not self._process:
            return 0.0
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return 0.0
        return sum(map(int, stat.rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def freeze(self) -> None:
        """Stop Java, so that it writes nothing more. Call ``kill`` soon after."""
        if self._process:
            self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """Kill Java without waiting.

        Java ends with this process anyway, except in the first moment of its start.
        """
        if self._process:
            self._process.kill()

    def end(self) -> None:
        """Kill Java and wait for its end."""
        if self._process:
            if self._process.stdin:
                self._process.stdin.close()
            self._process.kill()
            self._process.wait()


def _wait_for(process: subprocess.Popen[bytes], info: Path) -> tuple[str, str]:
    """Return the port and the secret, which Java writes to ``info`` when it is ready. Raises JavaStartError."""
    while not info.exists():
        if process.poll() is not None:
            raise JavaStartError(f"Java ended with status {process.returncode}.")
        time.sleep(POLL_SECONDS)
    text = info.read_bytes()
    info.unlink()
    port, length = struct.unpack(">ii", text[:8])
    return str(port), text[8 : 8 + length].decode()


_ADVICE = (
    (
        "stopped SparkContext",
        f"Spark's master does not respond, or rejects this driver, for example without the same secret; see {PAGE}",
    ),
)
"""Parts of Spark's errors, and the text to use instead."""

_MEMORY = "Is [spark] driver_memory right for this machine?"


def why_not_started(error: Exception) -> str:
    """Return in one line why a session could not start. Mentions memory if it may be the cause."""
    reason = one_line(error)
    for fragment, advice in _ADVICE:
        if fragment in reason:
            return advice
    return f"{reason} {_MEMORY}" if isinstance(error, JavaStartError) or "memory" in reason.lower() else reason
