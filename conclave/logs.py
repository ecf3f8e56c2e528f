"""Logging: readable lines on a terminal, JSON otherwise; never a body, token, password or key.

Each request has a line. Where lines are JSON, those of requests are put together by orjson and gathered for at most
50 ms, to be written in one go: by way of structlog and the standard library they would cost more than most requests.
"""

import asyncio
import logging
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson
import structlog

GATHER_SECONDS = 0.05
"""The line of a request is written at most 50 ms later."""

_NEWLINE = orjson.OPT_APPEND_NEWLINE


def configure_logging() -> None:
    """Send structlog's and the standard library's records to stderr, one line each.

    Tracebacks come without the values of variables: among those are passwords, tokens and bodies.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if sys.stderr.isatty():
        render: list[structlog.typing.Processor] = [
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        ]
    else:
        without_locals = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        render = [structlog.processors.ExceptionRenderer(without_locals), structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    global _gathering  # noqa: PLW0603 - as the standard library's logging, of which there is one in a process
    handler = _Gathering(sys.stderr)
    _gathering = None if sys.stderr.isatty() else handler
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    # It would log requests that are not HTTP, with their content. Failures of this server are in its own log.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    for ours in ("conclave", "spark"):
        logging.getLogger(ours).setLevel(logging.INFO)


def log_request(**fields: Any) -> None:
    """Log the event ``request`` with its ``fields``. Only for the event loop's thread."""
    if _gathering:
        _gathering.gather(fields)
    else:
        log.info("request", **fields)


class _Gathering(logging.StreamHandler[TextIO]):
    """Writes records, and before each of them the lines of the requests that came before it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._mutex = threading.Lock()
        self._lines: list[bytes] = []

    def gather(self, fields: dict[str, Any]) -> None:
        """Write the line of a request within GATHER_SECONDS."""
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        line = orjson.dumps(fields | {"event": "request", "level": "info", "timestamp": now}, option=_NEWLINE)
        with self._mutex:
            self._lines.append(line)
            is_first = len(self._lines) == 1
        if is_first:
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self.flush)

    def flush(self) -> None:
        """Write what was gathered, and flush the stream."""
        with self._mutex:
            lines, self._lines = self._lines, []
        if lines:
            with suppress(OSError, ValueError):  # nobody can read the log: not the fault of a request
                self.stream.write(b"".join(lines).decode())
        with suppress(OSError, ValueError):
            super().flush()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record after the lines of the requests that came before it."""
        self.flush()
        super().emit(record)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of module ``name``."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


log = get_logger(__name__)
_gathering: "_Gathering | None" = None
