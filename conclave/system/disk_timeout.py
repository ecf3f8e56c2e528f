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
    """Run ``work``, which accesses ``path``, and return its result. Raises the errors of ``work``, or TimeoutError.

    After a timeout ``work`` continues in its thread once the disk responds, so its progress is undefined. Until it has
    ended, further calls for the same path fail at once.
    """
    result = Future[T]()

    def do() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - passed to the caller
            result.set_exception(error)

    if path in _hung and _hung[path].is_alive():
        raise _timeout_error(path)
    _hung[path] = thread = Thread(target=do, name="disk", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise _timeout_error(path)
    _hung.pop(path, None)  # another thread may have removed it
    return result.result()


def _timeout_error(path: Path) -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, "its disk does not answer", str(path))
