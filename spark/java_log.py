"""Takes what Java and Spark write into the log, an event a line: nothing of a message's content, no ids, no noise."""

import logging
import re
import threading
from collections.abc import Iterable
from typing import IO, NamedTuple

from conclave.logs.setup import get_logger

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
    """Tell whether a record is not one of py4j's own.

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
