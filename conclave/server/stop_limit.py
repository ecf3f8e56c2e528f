"""Bounds how long a stop of the server may take. Then the process ends by force, and the log says where it stood."""

import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from conclave.logs.setup import CLOSE_SECONDS, get_logger

log = get_logger(__name__)

LIMIT_SECONDS = 45.0
"""A stop takes at most 45 seconds: less than the 60 after which the unit of systemd has everything killed.

An orderly one may take some 20: one for the worker, 5 for requests and streams, 10 for another process's lock, and
what the disk needs for the write-ahead log.
"""

EXIT_STATUS = 1
"""The exit status of a server that was ended by force."""

PACKAGE = Path(__file__).parents[1]


class StopLimit:
    """Ends the process if a stop takes longer than LIMIT_SECONDS. Nothing acknowledged is lost: it is stored."""

    def __init__(self, kill: Callable[[], None]) -> None:
        """``kill``: called at the last moment, from a thread of its own, to end other processes at once."""
        self._kill = kill
        self._watch: threading.Thread | None = None

    def begin(self) -> None:
        """Count from here on; further calls change nothing. For the main thread."""
        if not self._watch:
            # A thread, since the event loop may be gone before the process is, which waits for its threads.
            self._watch = threading.Thread(target=self._watch_end, name="stop limit", daemon=True)
            self._watch.start()

    def _watch_end(self) -> None:
        threading.Event().wait(LIMIT_SECONDS)
        # The thread that hangs may hold a lock of the log.
        telling = threading.Thread(target=_log_forced_stop, daemon=True)
        telling.start()
        telling.join(2 * CLOSE_SECONDS)
        self._kill()
        os._exit(EXIT_STATUS)  # sys.exit would wait for threads


def _log_forced_stop() -> None:
    log.error("stop_forced", seconds=LIMIT_SECONDS, waits_for=_thread_positions())
    logging.shutdown()


def _thread_positions() -> dict[str, str]:
    """Return where each thread of this process stands in Conclave's own code."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = {}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented, and has no other name
        at = frame
        while at and PACKAGE not in Path(at.f_code.co_filename).parents:
            at = at.f_back  # type: ignore[assignment]
        if at and ident != threading.get_ident():
            where = Path(at.f_code.co_filename).relative_to(PACKAGE.parent)
            found[names.get(ident, str(ident))] = f"{where}:{at.f_lineno} {at.f_code.co_name}"
    return found
