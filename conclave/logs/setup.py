"""Logging: readable lines on a terminal, JSON otherwise; never a body, token, password or key.

``[log] requests`` selects the requests that are logged. Their lines are formatted here and buffered for at most 50 ms:
structlog and the standard library would cost more than most requests.

Output never blocks, even if its reader does, such as a terminal after Ctrl-S or a hanging program. Lines are buffered
up to a limit. Beyond that the oldest are dropped, and their number is logged.
"""

import asyncio
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO

import orjson
import structlog

from conclave.config.log import ALL, AUTO, ERRORS, JSON, LEVELS, LogConfig
from conclave.logs.lines import ConsoleRenderer, request_line

PIPE_BYTES = select.PIPE_BUF
"""The bytes that a writable pipe accepts without blocking, 4,096 on Linux."""

MAX_BYTES = 1024 * 1024
"""The limit of buffered lines."""

RETRY_SECONDS = 0.2
"""The interval of retries."""

CLOSE_SECONDS = 1.0
"""The longest wait for remaining lines at the end of the process."""


class NonblockingStream:
    """A text stream whose writes neither block nor fail."""

    def __init__(self, stream: TextIO, log_lost: Callable[[int], None]) -> None:
        """``log_lost``: called with the number of dropped lines, once the reader reads again."""
        self._stream = stream
        self._log_lost = log_lost
        self._lock = threading.RLock()
        self._pending = b""
        self._lines: deque[bytes] = deque()
        self._bytes = self._lost = 0
        self._retry: threading.Timer | None = None
        try:
            self._file: int | None = stream.fileno()
        except OSError:
            self._file = None  # not a file, as in tests: it never blocks

    def write(self, text: str) -> None:
        """Buffer complete lines. ``flush`` writes them."""
        if self._file is None:
            self._stream.write(text)
            return
        with self._lock:
            for line in text.encode("utf-8", "backslashreplace").splitlines(keepends=True):
                self._lines.append(line)
                self._bytes += len(line)
            while self._bytes > MAX_BYTES and self._lines:
                self._bytes -= len(self._lines.popleft())
                self._lost += 1

    def flush(self, seconds: float = 0.0) -> None:
        """Write as many lines as possible within ``seconds``; the rest is retried later."""
        if self._file is None:
            self._stream.flush()
            return
        dropped = 0
        with self._lock:
            self._write(self._file, time.monotonic() + seconds)
            if self._pending or self._lines:
                self._try_later()
            else:
                dropped, self._lost = self._lost, 0
        if dropped:  # without the lock: this writes to the log, which has its own lock
            self._log_lost(dropped)

    def _write(self, file: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(file, select.POLLOUT)
        while self._pending or self._lines:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return
            if not self._pending:
                self._take_lines()
            try:
                count = os.write(file, self._pending[:PIPE_BYTES])
            except BlockingIOError:
                return  # another process has made the file non-blocking
            except OSError:
                count = len(self._pending)  # drop the line: requests must not fail
            self._pending = self._pending[count:]

    def _take_lines(self) -> None:
        """Move as many lines as a pipe accepts at once, but at least one, to ``_pending``."""
        lines: list[bytes] = []
        size = 0
        while self._lines and (not lines or size + len(self._lines[0]) <= PIPE_BYTES):
            lines.append(self._lines.popleft())
            size += len(lines[-1])
        self._pending = b"".join(lines)
        self._bytes -= size

    def _try_later(self) -> None:
        if self._retry is None or not self._retry.is_alive():
            self._retry = threading.Timer(RETRY_SECONDS, self._retry_now)
            self._retry.daemon = True
            self._retry.start()

    def _retry_now(self) -> None:
        with self._lock:
            self._retry = None
        self.flush()


BUFFER_SECONDS = 0.05
"""The longest delay of the line of a request."""


_REQUESTS_FROM = {ALL: 0, ERRORS: 400}
"""The lowest status of requests that are logged."""

_NEVER = 1000
"""Above every status."""


def configure_logging(config: LogConfig | None = None) -> None:
    """Configure structlog and the standard library to log to stderr, one line a record. May be called again.

    Tracebacks omit the values of variables, which may be passwords, tokens and bodies.
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
        render = [structlog.processors.format_exc_info, ConsoleRenderer(coloured=_is_coloured())]
    structlog.configure(
        # The level is checked at each call, since it may change.
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    global _handler, _write_request, _requests_from  # noqa: PLW0603 - one in a process, like the standard library's
    if _handler:
        _handler.flush()
    _handler = _BufferingHandler(sys.stderr)
    _write_request = _handler.add_json if is_json else _handler.add_text
    _handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    are_logged = LEVELS.index(config.level) <= LEVELS.index("info")
    default = ALL if is_json or config.level == "debug" else ERRORS
    requests = default if config.requests == AUTO else config.requests
    _requests_from = _REQUESTS_FROM.get(requests, _NEVER) if are_logged else _NEVER
    root = logging.getLogger()
    root.handlers = [_handler]
    root.setLevel(max(logging.WARNING, _number(config.level)))
    # It would log the content of malformed requests. This server logs its own errors.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    for name in ("conclave", "spark"):
        logging.getLogger(name).setLevel(_number(config.level))


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def _is_coloured() -> bool:
    """Return whether to use colours: on a terminal unless NO_COLOR is set, anywhere if FORCE_COLOR is."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stderr.isatty()


def log_request(method: str, route: str, status: int, seconds: float, request_id: str) -> None:
    """Log the event ``request``. ``seconds``: its duration. Only for the event loop's thread."""
    if status >= _requests_from:
        _write_request(method, route, status, round(seconds * 1000, 1), request_id)


def _write_request_line(method: str, route: str, status: int, ms: float, request_id: str) -> None:
    log.info("request", method=method, route=route, status=status, ms=ms, request_id=request_id)


def _log_lost(count: int) -> None:
    log.warning("log_lines_lost", count=count)


class _BufferingHandler(logging.StreamHandler[NonblockingStream]):
    """Writes records, and before each the buffered lines of earlier requests."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(NonblockingStream(stream, _log_lost))
        self._mutex = threading.Lock()
        self._lines: list[bytes] = []

    def add_json(self, method: str, route: str, status: int, ms: float, request_id: str) -> None:
        """Buffer the line of a request for at most BUFFER_SECONDS."""
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

    def add_text(self, method: str, route: str, status: int, ms: float, _: str) -> None:
        """Buffer the line of a request as text."""
        self._add(f"{request_line(method, route, status, ms)}\n".encode())

    def _add(self, line: bytes) -> None:
        with self._mutex:
            self._lines.append(line)
            is_first = len(self._lines) == 1
        if is_first:
            asyncio.get_running_loop().call_later(BUFFER_SECONDS, self.flush)

    def flush(self) -> None:
        """Write the buffered lines, and flush the stream."""
        with self._mutex:
            lines, self._lines = self._lines, []
        if lines:
            with suppress(OSError, ValueError):  # requests must not fail
                self.stream.write(b"".join(lines).decode())
        with suppress(OSError, ValueError):
            super().flush()

    def close(self) -> None:
        """Write the remaining lines for at most CLOSE_SECONDS."""
        with suppress(OSError, ValueError):
            self.stream.flush(CLOSE_SECONDS)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record after the lines of earlier requests."""
        self.flush()
        super().emit(record)


def _now() -> str:
    """Return the current time in structlog's format. The formatted second is cached."""
    global _cached_second  # noqa: PLW0603 - a value that only depends on the time
    nanoseconds = time.time_ns()
    second = nanoseconds // 1_000_000_000
    if _cached_second[0] != second:
        _cached_second = second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{_cached_second[1]}.{nanoseconds // 1000 % 1_000_000:06d}Z"


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of module ``name``."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


log = get_logger(__name__)
_cached_second = 0, ""
_handler: "_BufferingHandler | None" = None
_write_request: Callable[[str, str, int, float, str], None] = _write_request_line
_requests_from = 0
