"""Writes the log without waiting for its reader: a terminal after Ctrl-S, a pipe to a program that hangs.

A write would wait for the reader, and the server with it, for all of its clients. So what the reader does not take at
once waits in memory. If that is too much, the oldest lines go, and the log says how many.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

AT_ONCE = select.PIPE_BUF
"""A pipe that can be written to takes so many bytes (4,096 on Linux) without a wait."""

MOST_BYTES = 1024 * 1024
"""At most 1 MiB waits for the reader."""

RETRY_SECONDS = 0.2
"""What waits is tried again five times a second."""

LAST_SECONDS = 1.0
"""At the end of a process the reader has a second for the rest."""


class Outlet:
    """A stream of text for a handler of the log. Nothing that the reader does makes its caller wait or fail."""

    def __init__(self, stream: TextIO, lost: Callable[[int], None]) -> None:
        """``lost``: told how many lines the reader has missed, once it reads again."""
        self._stream = stream
        self._write_lost = lost
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
            while self._bytes > MOST_BYTES and self._lines:
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
            self._write_lost(missed)

    def _write(self, file: int, until: float) -> None:
        poll = select.poll()
        poll.register(file, select.POLLOUT)
        while self._begun or self._lines:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return
            if not self._begun:
                self._begin()
            try:
                written = os.write(file, self._begun[:AT_ONCE])
            except BlockingIOError:
                return  # another process has made it a file that does not wait
            except OSError:
                written = len(self._begun)  # the log cannot be written: not the fault of a request
            self._begun = self._begun[written:]

    def _begin(self) -> None:
        """Take as many lines as a pipe takes at once, and at least one."""
        begun: list[bytes] = []
        size = 0
        while self._lines and (not begun or size + len(self._lines[0]) <= AT_ONCE):
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
