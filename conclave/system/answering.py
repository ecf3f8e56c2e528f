"""Waits for a disk that may never answer, as one of the network that is away, and goes on without it."""

import errno
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

_left: dict[Path, Thread] = {}
"""Who was left waiting for the disk of each path. There is one at most, until the disk answers or the process ends."""


def within(seconds: float, path: Path, work: Callable[[], T]) -> T:
    """Return what ``work`` does with ``path``, whatever it raises; TimeoutError if the disk takes longer than that.

    Then the work goes on by itself, as soon as the disk lets it: nothing else may rely on where it is. Until it has
    ended, more for the same path fails at once.
    """
    done = Future[T]()

    def do() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is for the caller
            done.set_exception(error)

    if path in _left and _left[path].is_alive():
        raise _no_answer(path)
    _left[path] = thread = Thread(target=do, name="disk", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise _no_answer(path)
    _left.pop(path, None)  # another thread may have waited for the same path
    return done.result()


def _no_answer(path: Path) -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, "its disk does not answer", str(path))
