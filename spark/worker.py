"""The cleanup worker: a process with the schedule, and a Spark session while that is used. It ends with the server.

It also ends where nothing is to be done for a while: the server starts another one for the next run.
"""

import os
import signal
import sys
import threading
import time
from types import TracebackType
from typing import NoReturn, TextIO

from conclave.clock import SystemClock
from conclave.config.settings import Config
from conclave.failpoints import reach
from conclave.logs.setup import configure_logging, get_logger
from conclave.retention.jobs import Scope, Timetable, schedule
from conclave.system.worker_protocol import (
    EXIT_NO_RESTART,
    DryRunEnded,
    JavaStarted,
    OrderAccepted,
    RunEnded,
    WorkerFault,
    WorkerIdle,
    WorkerMessage,
    WorkerOrder,
    WorkerState,
    decode_idle,
    decode_order,
    encode_message,
)
from spark.environment import CleanupError, RunEnvironment, SparkStartError
from spark.readiness import EXPECTED, NOT_BEGUN
from spark.rehearsal import rehearse
from spark.run import clean_up, get_ready_ahead

log = get_logger(__name__)

LONGEST_SLEEP_SECONDS = 3600.0
"""A sleep lasts at most an hour: an interval may be longer than the longest sleep that the system allows."""

SOON_SECONDS = 150.0
"""Spark is started ahead of a run that is due within 150 seconds, not of a later one: this worker may end before it."""

PAUSE_SECONDS = 0.2
"""The worker pauses at least 0.2 s between two runs, however long they take.

Otherwise others who wait for the run lock, such as a backup, might never get it.
"""

_ENDING = threading.RLock()
"""Held while this process is being ended. A second end, by a signal or the server, would leave files half removed.

A handler may interrupt another one in its thread.
"""


class Orders:
    """What an operator wants at once, while the worker works or waits."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._given: set[WorkerOrder] = set()
        self._news = threading.Event()

    def give(self, order: WorkerOrder) -> None:
        """Have the worker do something at once, or as soon as the run under way has ended."""
        self._given.add(order)
        self._news.set()

    @property
    def are_given(self) -> bool:
        """Whether anything is to be done at once."""
        return bool(self._given)

    def wait(self, seconds: float) -> WorkerOrder | None:
        """Wait for at most so many seconds; return what is to be done at once, None for nothing."""
        if not self._given:
            self._news.wait(seconds)
        self._news.clear()  # before the look: what is given after it is found by the next one
        for order in WorkerOrder:
            if order in self._given:
                self._given.discard(order)
                return order
        return None


def main() -> None:
    """Run cleanup as scheduled until there is nothing to do for a while, or the standard input ends.

    The argument says what a worker before this one was about to do; without it all is done at once.
    """
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the server tells when to end
    tell = _take_stdout()
    config = Config.from_json(sys.stdin.readline())
    configure_logging(config.log)
    sys.excepthook = _log_fault
    engine, orders = RunEnvironment(config, SystemClock()), Orders()
    signal.signal(signal.SIGTERM, lambda *_: _end(engine))
    threading.Thread(target=_listen_to_server, args=(engine, orders), daemon=True).start()
    try:
        now = time.monotonic()
        Worker(engine, orders, tell).work(decode_idle(sys.argv[1], now) if len(sys.argv) > 1 else None, now)
    finally:
        engine.abandon()


class Worker:
    """Does each job when it is due: one at a time, the longest due first."""

    def __init__(self, engine: RunEnvironment, orders: Orders, tell: TextIO) -> None:
        """``tell``: takes the messages for the server."""
        self._engine = engine
        self._config = config = engine.config
        self._jobs = schedule(config.retention.purge_jobs, config.cleanup_interval)
        self._orders = orders
        self._tell = tell

    def work(self, former: WorkerIdle | None, began: float) -> NoReturn:
        """Do the jobs, and all of them anew when that is ordered.

        ``former``: what was still to be done of them when this worker ``began``, seconds of the monotonic clock.
        """
        try:
            self._engine.check()
        except CleanupError as error:
            self._say(WorkerFault(str(error)))
            raise SystemExit(1 if isinstance(error, SparkStartError) else EXIT_NO_RESTART) from None
        self._say(WorkerState.READY)
        while True:
            due = [began + each for each in former.due] if former else ()
            intervals, now = [interval for _, interval in self._jobs], time.monotonic()
            table = Timetable(intervals, self._config.cleanup_interval, now, due)
            chosen, at = table.next()
            if 0 < at - now < SOON_SECONDS:
                self._wake(self._jobs[chosen][0], at)
            former = None
            self._work_by(table)

    def _wake(self, scope: Scope, due: float) -> None:
        """Start Spark ahead of the run that is due next, if it will have anything for Spark to do.

        If that fails, the run tries it again, and tells why.
        """
        try:
            if get_ready_ahead(self._engine, scope, max(0.0, due - time.monotonic()), self._say):
                self._say(JavaStarted(self._engine.start_seconds, due - time.monotonic()))
        except NOT_BEGUN as error:
            log.warning("cleanup_not_ready", reason=str(error))

    def _work_by(self, table: Timetable) -> None:
        """Do each job when it is due. Returns when all shall be done at once."""
        while True:
            chosen, due = table.next()
            left = due - time.monotonic()
            order = self._orders.wait(min(max(0.0, left), LONGEST_SLEEP_SECONDS))
            if order:
                self._say(OrderAccepted(order))
            if order is WorkerOrder.RUN:
                return
            if order is WorkerOrder.COUNT:
                self._count(due)
            elif left > 0:
                continue
            else:
                self._run(chosen, table)
                time.sleep(PAUSE_SECONDS)
            self._rest(table)

    def _run(self, chosen: int, table: Timetable) -> None:
        """Do a run, and tell of it. Raises SystemExit if another worker has to go on."""
        engine = self._engine
        table.begin(chosen, time.monotonic())
        was_warm = engine.is_warm

        def tell(state: WorkerState) -> None:
            if state is WorkerState.BEGAN and engine.is_warm and not was_warm:
                self._say(JavaStarted(engine.start_seconds, 0.0))
            self._say(state)

        try:
            done = clean_up(engine, scope=self._jobs[chosen][0], tell=tell)
            if done.error:
                table.fail(chosen, time.monotonic())
            self._say(RunEnded(done.to_mapping(), table.next().due - time.monotonic()))
            if (done.error or engine.broken_off) and not engine.is_sound():
                self._say(WorkerFault(engine.broken_off or "the Spark session has died"))
                raise SystemExit(1)
        except SparkStartError as error:
            self._say(WorkerFault(str(error)))
            raise SystemExit(1) from None
        except CleanupError as error:
            table.fail(chosen, time.monotonic())
            self._say(WorkerFault(str(error), table.next().due - time.monotonic()))

    def _rest(self, table: Timetable) -> None:
        """Fall asleep if the next run is far off, or Java has had nothing to do for long."""
        now, keep = time.monotonic(), self._config.cleanup.keep_warm
        is_idle = self._engine.is_warm and now - self._engine.used_at > keep
        if self._orders.are_given or (table.next().due - now <= keep and not is_idle):
            return
        self._say(WorkerIdle(tuple(at - now for at in table.due)))
        reach("worker.told_asleep")
        self._engine.close()
        reach("worker.java_ended")
        with _ENDING:
            os._exit(0)  # the interpreter would wait for the thread that reads the server's orders

    def _count(self, due: float) -> None:
        """Do a dry run, and tell what a run would delete, or why that could not be counted."""
        self._say(WorkerState.COUNTING)
        try:
            counted = rehearse(self._engine).to_mapping()
        except EXPECTED as error:
            counted = {"error": str(error)}
        except Exception as error:
            log.exception("cleanup_failed", engine=self._config.cleanup.engine)
            counted = {"error": f"{type(error).__name__}: {error}"}
        self._say(DryRunEnded(counted, due - time.monotonic()))

    def _say(self, message: WorkerMessage) -> None:
        self._tell.write(encode_message(message))


def _log_fault(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Log what ends this process: nothing but lines of the log may go to the server's."""
    log.error("cleanup_failed", exc_info=(kind, error, traceback))


def _take_stdout() -> TextIO:
    """Keep the standard output for messages to the server; everything else written there goes to stderr."""
    tell = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return tell


def _listen_to_server(engine: RunEnvironment, orders: Orders) -> None:
    """Take what the server sends until it ends, then end. Its side of the pipe closes even if it crashes."""
    try:
        while line := sys.stdin.readline():
            if order := decode_order(line):
                orders.give(order)
            else:
                configure_logging(Config.from_json(line).log)
    except Exception:
        log.exception("cleanup_failed")  # without this thread nothing would end this process: another one starts anew
        _end(engine, 1)
    _end(engine)


def _end(engine: RunEnvironment, status: int = 0) -> None:
    """End without finishing the work under way; Java ends too."""
    with _ENDING:
        try:
            engine.halt()
        finally:
            os._exit(status)


if __name__ == "__main__":
    main()
