"""Logging: readable lines on a terminal, JSON otherwise; never a body, token, password or key.

``[log] requests`` says which requests have a line. These lines are put together here and gathered for at most 50 ms, to
be written in one go: by way of structlog and the standard library they would cost more than most requests.

The log is written without waiting for its reader, as a terminal after Ctrl-S or a pipe to a program that hangs: the
server would wait with it, for all of its clients. What the reader does not take at once waits in memory. If that is too
much, the oldest lines go, and the log says how many.
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
"""A pipe that can be written to takes so many bytes (4,096 on Linux) without a wait."""

MAX_BYTES = 1024 * 1024
"""At most 1 MiB waits for the reader."""

RETRY_SECONDS = 0.2
"""What waits is tried again five times a second."""

CLOSE_SECONDS = 1.0
"""At the end of a process the reader has a second for the rest."""


class NonblockingStream:
    """A stream of text for a handler of the log. Nothing that the reader does makes its caller wait or fail."""

    def __init__(self, stream: TextIO, lost: Callable[[int], None]) -> None:
        """``lost``: told how many lines the reader has missed, once it reads again."""
        self._stream = stream
        self._log_lost = lost
        self._lock = threading.RLock()
        self._begun = b""
        self._lines: deque[bytes] = deque()
        self._bytes = self._lost = 0
        self._retry: threading.Timer | None = None
        try:
            self._file: int | None = stream.fileno()
        except OSError:
            self._file = None  # not of the system's, as in a test: it takes everything

    def write(self, text: str) -> None:
        """Take whole lines. ``flush`` writes them."""
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
        """Write what the reader takes within ``seconds``; the rest is tried again later."""
        if self._file is None:
            self._stream.flush()
            return
        missed = 0
        with self._lock:
            self._write(self._file, time.monotonic() + seconds)
            if self._begun or self._lines:
                self._try_later()
            else:
                missed, self._lost = self._lost, 0
        if missed:  # without the lock: this writes to the log, which has a lock of its own
            self._log_lost(missed)

    def _write(self, file: int, until: float) -> None:
        poll = select.poll()
        poll.register(file, select.POLLOUT)
        while self._begun or self._lines:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return
            if not self._begun:
                self._begin()
            try:
                written = os.write(file, self._begun[:PIPE_BYTES])
            except BlockingIOError:
                return  # another process has made it a file that does not wait
            except OSError:
                written = len(self._begun)  # the log cannot be written: not the fault of a request
            self._begun = self._begun[written:]

    def _begin(self) -> None:
        """Take as many lines as a pipe takes at once, and at least one."""
        begun: list[bytes] = []
        size = 0
        while self._lines and (not begun or size + len(self._lines[0]) <= PIPE_BYTES):
            begun.append(self._lines.popleft())
            size += len(begun[-1])
        self._begun = b"".join(begun)
        self._bytes -= size

    def _try_later(self) -> None:
        if self._retry is None or not self._retry.is_alive():
            self._retry = threading.Timer(RETRY_SECONDS, self._again)
            self._retry.daemon = True
            self._retry.start()

    def _again(self) -> None:
        with self._lock:
            self._retry = None
        self.flush()


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
        render = [structlog.processors.format_exc_info, ConsoleRenderer(coloured=_is_coloured())]
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
    _gathering = _BufferingHandler(sys.stderr)
    _write_request = _gathering.add_json if is_json else _gathering.add_text
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


def _log_lost(count: int) -> None:
    log.warning("log_lines_lost", count=count)


class _BufferingHandler(logging.StreamHandler[NonblockingStream]):
    """Writes records, and before each of them the lines of the requests that came before it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(NonblockingStream(stream, _log_lost))
        self._mutex = threading.Lock()
        self._lines: list[bytes] = []

    def add_json(self, method: str, route: str, status: int, ms: float, request_id: str) -> None:
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

    def add_text(self, method: str, route: str, status: int, ms: float, _: str) -> None:
        """Do as ``add_json``, for people."""
        self._add(f"{request_line(method, route, status, ms)}\n".encode())

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
            self.stream.flush(CLOSE_SECONDS)
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
_gathering: "_BufferingHandler | None" = None
_write_request: Callable[[str, str, int, float, str], None] = _write_request_line
_requests_from = 0
