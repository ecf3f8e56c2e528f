"""Logging: readable lines on a terminal, JSON otherwise; never a body, token, password or key.

``[log] requests`` says which requests have a line. These lines are put together here and gathered for at
most 50 ms, to be written in one go: by way of structlog and the standard library they would cost more than most
requests.
"""

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO

import orjson
import structlog

from conclave.config.log import ALL, AUTO, ERRORS, JSON, LEVELS, LogConfig
from conclave.logs.lines import ForPeople, of_request
from conclave.logs.nonblocking import LAST_SECONDS, Outlet

GATHER_SECONDS = 0.05
"""The line of a request is written at most 50 ms later."""


_REQUESTS_FROM = {ALL: 0, ERRORS: 400}
"""The least status of a request that has a line."""

_NEVER = 1000
"""No status is as great as 1000."""


def configure_logging(config: LogConfig | None = None) -> None:
    """Send structlog's and the standard library's records to stderr, one line each. May be called again.

    Tracebacks come without the values of variables: among those are passwords, tokens and bodies.
    """
    config = config or LogConfig()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    is_json = config.format == JSON or (config.format == AUTO and not sys.stderr.isatty())
    if is_json:
        without_locals = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        render: list[structlog.typing.Processor] = [
            structlog.processors.ExceptionRenderer(without_locals),
            structlog.processors.JSONRenderer(),
        ]
    else:
        render = [structlog.processors.format_exc_info, ForPeople(coloured=_is_coloured())]
    structlog.configure(
        # The level is asked for at each call, not once for each logger: it may change.
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    global _gathering, _write_request, _requests_from  # noqa: PLW0603 - as of the standard library, one in a process
    if _gathering:
        _gathering.flush()
    _gathering = _Gathering(sys.stderr)
    _write_request = _gathering.gather_json if is_json else _gathering.gather_for_people
    _gathering.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    are_logged = LEVELS.index(config.level) <= LEVELS.index("info")
    by_itself = ALL if is_json or config.level == "debug" else ERRORS
    requests = by_itself if config.requests == AUTO else config.requests
    _requests_from = _REQUESTS_FROM.get(requests, _NEVER) if are_logged else _NEVER
    root = logging.getLogger()
    root.handlers = [_gathering]
    root.setLevel(max(logging.WARNING, _number(config.level)))
    # It would log requests that are not HTTP, with their content. Failures of this server are in its own log.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    for ours in ("conclave", "spark"):
        logging.getLogger(ours).setLevel(_number(config.level))


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def _is_coloured() -> bool:
    """Tell whether lines have colours: on a terminal, unless NO_COLOR is set; anywhere if FORCE_COLOR is."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stderr.isatty()


def log_request(method: str, route: str, status: int, seconds: float, request_id: str) -> None:
    """Log the event ``request``. ``seconds``: how long it took. Only for the event loop's thread."""
    if status >= _requests_from:
        _write_request(method, route, status, round(seconds * 1000, 1), request_id)


def _write_request_line(method: str, route: str, status: int, ms: float, request_id: str) -> None:
    log.info("request", method=method, route=route, status=status, ms=ms, request_id=request_id)


def _write_lost(count: int) -> None:
    log.warning("log_lines_lost", count=count)


class _Gathering(logging.StreamHandler[Outlet]):
    """Writes records, and before each of them the lines of the requests that came before it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(Outlet(stream, _write_lost))
        self._mutex = threading.Lock()
        self._lines: list[bytes] = []

    def gather_json(self, method: str, route: str, status: int, ms: float, request_id: str) -> None:
        """Write the line of a request within GATHER_SECONDS."""
        line = orjson.dumps(
            {
                "method": method,
                "route": route,
                "status": status,
                "ms": ms,
                "event": "request",
                "request_id": request_id,
                "level": "info",
                "timestamp": _now(),
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )
        self._add(line)

    def gather_for_people(self, method: str, route: str, status: int, ms: float, _: str) -> None:
        """Do as ``gather_json``, for people."""
        self._add(f"{of_request(method, route, status, ms)}\n".encode())

    def _add(self, line: bytes) -> None:
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
            with suppress(OSError, ValueError):  # the log cannot be written: not the fault of a request
                self.stream.write(b"".join(lines).decode())
        with suppress(OSError, ValueError):
            super().flush()

    def close(self) -> None:
        """Give the reader a moment for the rest: the process ends."""
        with suppress(OSError, ValueError):
            self.stream.flush(LAST_SECONDS)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record after the lines of the requests that came before it."""
        self.flush()
        super().emit(record)


def _now() -> str:
    """Return the time as structlog writes it: the second is written once for all lines of it."""
    global _second  # noqa: PLW0603 - a value that only depends on the time
    nanoseconds = time.time_ns()
    second = nanoseconds // 1_000_000_000
    if _second[0] != second:
        _second = second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{_second[1]}.{nanoseconds // 1000 % 1_000_000:06d}Z"


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of module ``name``."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


log = get_logger(__name__)
_second = 0, ""
_gathering: "_Gathering | None" = None
_write_request: Callable[[str, str, int, float, str], None] = _write_request_line
_requests_from = 0
