"""Limits the duration of a shutdown. After that the process exits, and the log says where its threads were."""

import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from conclave.logs.setup import CLOSE_SECONDS, get_logger

log = get_logger(__name__)

LIMIT_SECONDS = 45.0
"""A shutdown takes at most 45 seconds: less than the 60 of the systemd unit.

A regular one may take some 20: one for the worker, 5 for requests and streams, 10 for another process's lock, and the
checkpoint of the write-ahead log.
"""

EXIT_STATUS = 1
"""The exit status of a forced shutdown."""

PACKAGE = Path(__file__).parents[1]


class StopLimit:
    """Exits the process if a shutdown takes longer than LIMIT_SECONDS. Acknowledged writes are durable."""

    def __init__(self, kill: Callable[[], None]) -> None:
        """``kill``: called last, from another thread, to kill child processes."""
        self._kill = kill
        self._watch: threading.Thread | None = None

    def begin(self) -> None:
        """Start the limit; further calls have no effect. For the main thread."""
        if not self._watch:
            # A thread: the event loop may be closed while the process still waits for its threads.
            self._watch = threading.Thread(target=self._watch_end, name="stop limit", daemon=True)
            self._watch.start()

    def _watch_end(self) -> None:
        threading.Event().wait(LIMIT_SECONDS)
        # The hanging thread may hold a lock of the log.
        thread = threading.Thread(target=_log_forced_stop, daemon=True)
        thread.start()
        thread.join(2 * CLOSE_SECONDS)
        self._kill()
        os._exit(EXIT_STATUS)  # sys.exit would wait for threads


def _log_forced_stop() -> None:
    log.error("stop_forced", seconds=LIMIT_SECONDS, waits_for=_thread_positions())
    logging.shutdown()


def _thread_positions() -> dict[str, str]:
    """Return the current position of each thread in Conclave's code."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    positions = {}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented
        own_frame = frame
        while own_frame and PACKAGE not in Path(own_frame.f_code.co_filename).parents:
            own_frame = own_frame.f_back  # type: ignore[assignment]
        if own_frame and ident != threading.get_ident():
            path = Path(own_frame.f_code.co_filename).relative_to(PACKAGE.parent)
            positions[names.get(ident, str(ident))] = f"{path}:{own_frame.f_lineno} {own_frame.f_code.co_name}"
    return positions
