"""Disk operations with a timeout, for disks that may hang, such as network file systems."""

import errno
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

_hung: dict[Path, Thread] = {}
"""The thread that is blocked on each path's disk, at most one for a path."""


def run_with_timeout(seconds: float, path: Path, work: Callable[[], T]) -> T:
    """Run ``work``, which accesses ``path``, and return its result. Raises what it raises, or TimeoutError.

    After a timeout ``work`` continues in its thread once the disk responds, so its progress is undefined. Until it has
    ended, further calls for the same path fail at once.
    """
    done = Future[T]()

    def do() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - passed to the caller
            done.set_exception(error)

    if path in _hung and _hung[path].is_alive():
        raise _no_answer(path)
    _hung[path] = thread = Thread(target=do, name="disk", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise _no_answer(path)
    _hung.pop(path, None)  # another thread may have removed it
    return done.result()


def _no_answer(path: Path) -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, "its disk does not answer", str(path))
