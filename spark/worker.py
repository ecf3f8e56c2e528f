"""The cleanup worker: a process with one warm session and the schedule, which ends with the server."""

import os
import signal
import sys
import threading
import time
from types import TracebackType
from typing import TextIO

from conclave.clock import SystemClock
from conclave.config.settings import Config
from conclave.logs.setup import configure_logging, get_logger
from conclave.retention.jobs import Scope, Timetable, schedule
from conclave.system.worker_protocol import (
    EXIT_GIVE_UP,
    Counted,
    Ended,
    Fault,
    Message,
    Order,
    State,
    order_of,
    to_line,
)
from spark.environment import CleanupError, RunEnvironment, SparkStartError
from spark.run import EXPECTED, clean_up, dry_run

log = get_logger(__name__)

LONGEST_SLEEP_SECONDS = 3600.0
"""A sleep lasts at most an hour: an interval may be longer than the longest sleep that the system allows."""

PAUSE_SECONDS = 0.2
"""The worker pauses at least 0.2 s between two runs, however long they take.

Otherwise others who wait for the run lock, such as a backup, might never get it.
"""

_ENDING = threading.RLock()
"""Held while this process is being ended. A second end, by a signal or the server, would leave files half removed.

A handler may interrupt another one in its thread.
"""


class Orders:
    """What the server has the worker go by, and what an operator wants at once, while the worker works or waits."""

    def __init__(self, config: Config) -> None:
        """Begin with ``config``."""
        self.newest = config
        self._given: set[Order] = set()
        self._news = threading.Event()

    def receive(self, config: Config) -> None:
        """Take other settings. Those of the log count at once, all others from the next run on."""
        configure_logging(config.log)
        is_other = _jobs(config) != _jobs(self.newest)
        self.newest = config
        if is_other:
            self.give(Order.RUN)  # other jobs begin with a run of each

    def give(self, order: Order) -> None:
        """Have the worker do something at once, or as soon as the run under way has ended."""
        self._given.add(order)
        self._news.set()

    def wait(self, seconds: float) -> Order | None:
        """Wait for at most so many seconds; return what is to be done at once, None for nothing."""
        if not self._given:
            self._news.wait(seconds)
        self._news.clear()  # before the look: what is given after it is found by the next one
        for order in Order:
            if order in self._given:
                self._given.discard(order)
                return order
        return None


def _jobs(config: Config) -> list[tuple[Scope, int]]:
    """Return what is done, and the seconds from run to run."""
    return schedule(config.retention.purge_jobs, config.cleanup_interval)


def main() -> None:
    """Run cleanup as scheduled, the first time at once, until the standard input ends."""
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the server tells when to end
    tell = _take_stdout()
    config = Config.from_json(sys.stdin.readline())
    configure_logging(config.log)
    sys.excepthook = _log_fault
    engine, orders = RunEnvironment(config, SystemClock()), Orders(config)
    signal.signal(signal.SIGTERM, lambda *_: _end(engine))
    threading.Thread(target=_listen_to_server, args=(engine, orders), daemon=True).start()
    try:
        _work(engine, orders, tell)
    finally:
        engine.abandon()


def _work(engine: RunEnvironment, orders: Orders, tell: TextIO) -> None:
    """Do each job when it is due, and all of them anew when there are others."""
    try:
        engine.warm_up()
    except CleanupError as error:
        _say(tell, Fault(str(error)))
        raise SystemExit(1 if isinstance(error, SparkStartError) else EXIT_GIVE_UP) from None
    _say(tell, State.READY)
    while True:
        _work_by(_jobs(orders.newest), orders.newest.cleanup_interval, engine, orders, tell)


def _work_by(jobs: list[tuple[Scope, int]], again: int, engine: RunEnvironment, orders: Orders, tell: TextIO) -> None:
    """Do each of ``jobs``, with the seconds from run to run, when it is due: one at a time, the longest due first.

    ``again``: one that failed is tried again after so many seconds at most. Returns when there are other jobs, or all
    of them shall be done at once.
    """
    table = Timetable([interval for _, interval in jobs], again, time.monotonic())
    while True:
        chosen, due = table.next()
        left = due - time.monotonic()
        order = orders.wait(min(max(0.0, left), LONGEST_SLEEP_SECONDS))
        if order is Order.RUN:
            return
        if order is Order.COUNT:
            _count(engine, orders.newest, due, tell)
        if order or left > 0:
            continue
        engine.config = orders.newest
        table.begin(chosen, time.monotonic())
        try:
            done = clean_up(engine, scope=jobs[chosen][0], tell=lambda state: _say(tell, state))
            if done.error:
                table.fail(chosen, time.monotonic())
            _say(tell, Ended(done.to_mapping(), table.next().due - time.monotonic()))
            if done.error and not engine.is_sound():
                _say(tell, Fault("the Spark session has died"))
                raise SystemExit(1)
        except CleanupError as error:
            table.fail(chosen, time.monotonic())
            _say(tell, Fault(str(error), table.next().due - time.monotonic()))
        time.sleep(PAUSE_SECONDS)


def _count(engine: RunEnvironment, config: Config, due: float, tell: TextIO) -> None:
    """Do a dry run, and tell what a run would delete, or why that could not be counted."""
    engine.config = config
    _say(tell, State.COUNTING)
    try:
        counted = dry_run(engine).to_mapping()
    except EXPECTED as error:
        counted = {"error": str(error)}
    except Exception as error:
        log.exception("cleanup_failed", engine=config.cleanup.engine)
        counted = {"error": f"{type(error).__name__}: {error}"}
    _say(tell, Counted(counted, due - time.monotonic()))


def _log_fault(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Log what ends this process: nothing but lines of the log may go to the server's."""
    log.error("cleanup_failed", exc_info=(kind, error, traceback))


def _take_stdout() -> TextIO:
    """Keep the standard output for messages to the server; everything else written there goes to stderr."""
    tell = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return tell


def _say(tell: TextIO, message: Message) -> None:
    tell.write(to_line(message))


def _listen_to_server(engine: RunEnvironment, orders: Orders) -> None:
    """Take what the server sends until it ends, then end. Its side of the pipe closes even if it crashes."""
    while line := sys.stdin.readline():
        if order := order_of(line):
            orders.give(order)
        else:
            orders.receive(Config.from_json(line))
    _end(engine)


def _end(engine: RunEnvironment) -> None:
    """End without finishing the work under way; Java ends too."""
    with _ENDING:
        try:
            engine.halt()
        finally:
            os._exit(0)


if __name__ == "__main__":
    main()
