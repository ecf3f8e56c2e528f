"""The cleanup worker: a process that runs cleanup on schedule, and starts Spark if necessary.

It exits with the server, and if the next run is far off: the server starts another worker for that run.
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

MAX_SLEEP_SECONDS = 3600.0
"""The longest sleep, since an interval may exceed the system's maximum."""

SOON_SECONDS = 150.0
"""Spark is started early for a run that is due within 150 seconds. Before a later run, this worker may exit."""

PAUSE_SECONDS = 0.2
"""The minimum pause between two runs, so that other processes, such as a backup, get the run lock."""

_EXITING = threading.RLock()
"""Held while this process exits: a second exit, by a signal or the server, would interrupt the removal of files.

Reentrant, since a signal handler may interrupt another one in its thread.
"""


class Orders:
    """The orders of operators, received while the worker runs or waits."""

    def __init__(self) -> None:
        self._pending: set[WorkerOrder] = set()
        self._arrival = threading.Event()

    def add(self, order: WorkerOrder) -> None:
        """Add an order, to carry out at once or after the current run."""
        self._pending.add(order)
        self._arrival.set()

    @property
    def any_pending(self) -> bool:
        """Whether there are orders."""
        return bool(self._pending)

    def wait(self, seconds: float) -> WorkerOrder | None:
        """Wait at most ``seconds`` for an order; return it, or None."""
        if not self._pending:
            self._arrival.wait(seconds)
        self._arrival.clear()  # before reading, so that later orders wake the next call
        for order in WorkerOrder:
            if order in self._pending:
                self._pending.discard(order)
                return order
        return None


def main() -> None:
    """Run cleanup on schedule until the worker is idle, or standard input ends.

    The argument is the state of the former worker; without it, all jobs are due at once.
    """
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the server ends this process
    output = _take_stdout()
    config = Config.from_json(sys.stdin.readline())
    configure_logging(config.log)
    sys.excepthook = _log_fault
    engine, orders = RunEnvironment(config, SystemClock()), Orders()
    signal.signal(signal.SIGTERM, lambda *_: _end(engine))
    threading.Thread(target=_listen_to_server, args=(engine, orders), daemon=True).start()
    try:
        now = time.monotonic()
        Worker(engine, orders, output).work(decode_idle(sys.argv[1], now) if len(sys.argv) > 1 else None, now)
    finally:
        engine.abandon()


class Worker:
    """Runs jobs when they are due: one at a time, the most overdue first."""

    def __init__(self, engine: RunEnvironment, orders: Orders, output: TextIO) -> None:
        """``output``: the stream for messages to the server."""
        self._engine = engine
        self._config = config = engine.config
        self._jobs = schedule(config.retention.purge_jobs, config.cleanup_interval)
        self._orders = orders
        self._output = output

    def work(self, former: WorkerIdle | None, started: float) -> NoReturn:
        """Run the jobs on schedule, and all of them when an operator orders a run.

        ``former``: the schedule of the former worker at the time ``started``, seconds of the monotonic clock.
        """
        try:
            self._engine.check()
        except CleanupError as error:
            self._send(WorkerFault(str(error)))
            raise SystemExit(1 if isinstance(error, SparkStartError) else EXIT_NO_RESTART) from None
        self._send(WorkerState.READY)
        while True:
            due = [started + each for each in former.due] if former else ()
            intervals, now = [interval for _, interval in self._jobs], time.monotonic()
            table = Timetable(intervals, self._config.cleanup_interval, now, due)
            position, next_due = table.next()
            if 0 < next_due - now < SOON_SECONDS:
                self._start_spark_ahead(self._jobs[position][0], next_due)
            former = None
            self._run_due_jobs(table)

    def _start_spark_ahead(self, scope: Scope, due: float) -> None:
        """Start Spark before the next run if it will need Spark. If that fails, the run tries again."""
        try:
            if get_ready_ahead(self._engine, scope, max(0.0, due - time.monotonic()), self._send):
                self._send(JavaStarted(self._engine.start_seconds, due - time.monotonic()))
        except NOT_BEGUN as error:
            log.warning("cleanup_not_ready", reason=str(error))

    def _run_due_jobs(self, table: Timetable) -> None:
        """Run each job when it is due. Returns when an operator orders a run of all jobs."""
        while True:
            position, due = table.next()
            left = due - time.monotonic()
            order = self._orders.wait(min(max(0.0, left), MAX_SLEEP_SECONDS))
            if order:
                self._send(OrderAccepted(order))
            if order is WorkerOrder.RUN:
                return
            if order is WorkerOrder.COUNT:
                self._count(due)
            elif left > 0:
                continue
            else:
                self._run(position, table)
                time.sleep(PAUSE_SECONDS)
            self._exit_if_idle(table)

    def _run(self, position: int, table: Timetable) -> None:
        """Do a run, and report it. Raises SystemExit if another worker has to continue."""
        engine = self._engine
        table.begin(position, time.monotonic())
        was_warm = engine.is_warm

        def tell(state: WorkerState) -> None:
            if state is WorkerState.BEGAN and engine.is_warm and not was_warm:
                self._send(JavaStarted(engine.start_seconds, 0.0))
            self._send(state)

        try:
            report = clean_up(engine, scope=self._jobs[position][0], tell=tell)
            if report.error:
                table.fail(position, time.monotonic())
            self._send(RunEnded(report.to_mapping(), table.next().due - time.monotonic()))
            if (report.error or engine.broken_off) and not engine.is_sound():
                self._send(WorkerFault(engine.broken_off or "the Spark session has failed"))
                raise SystemExit(1)
        except SparkStartError as error:
            self._send(WorkerFault(str(error)))
            raise SystemExit(1) from None
        except CleanupError as error:
            table.fail(position, time.monotonic())
            self._send(WorkerFault(str(error), table.next().due - time.monotonic()))

    def _exit_if_idle(self, table: Timetable) -> None:
        """Exit if the next run is far off, or Java has been idle for long."""
        now, keep = time.monotonic(), self._config.cleanup.keep_warm
        is_idle = self._engine.is_warm and now - self._engine.used_at > keep
        if self._orders.any_pending or (table.next().due - now <= keep and not is_idle):
            return
        self._send(WorkerIdle(tuple(due - now for due in table.due)))
        reach("worker.told_asleep")
        self._engine.close()
        reach("worker.java_ended")
        with _EXITING:
            os._exit(0)  # a normal exit would wait for the thread that reads orders

    def _count(self, due: float) -> None:
        """Do a dry run, and report its result or its error."""
        self._send(WorkerState.COUNTING)
        try:
            result = rehearse(self._engine).to_mapping()
        except EXPECTED as error:
            result = {"error": str(error)}
        except Exception as error:
            log.exception("cleanup_failed", engine=self._config.cleanup.engine)
            result = {"error": f"{type(error).__name__}: {error}"}
        self._send(DryRunEnded(result, due - time.monotonic()))

    def _send(self, message: WorkerMessage) -> None:
        self._output.write(encode_message(message))


def _log_fault(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Log the exception that ends this process, since the server's log must contain only log lines."""
    log.error("cleanup_failed", exc_info=(kind, error, traceback))


def _take_stdout() -> TextIO:
    """Return standard output, for messages to the server, and redirect other output to standard error."""
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return output


def _listen_to_server(engine: RunEnvironment, orders: Orders) -> None:
    """Read orders until the server closes its pipe or crashes, then exit."""
    try:
        while line := sys.stdin.readline():
            if order := decode_order(line):
                orders.add(order)
            else:
                configure_logging(Config.from_json(line).log)
    except Exception:
        log.exception("cleanup_failed")  # without this thread, the process would not exit with the server
        _end(engine, 1)
    _end(engine)


def _end(engine: RunEnvironment, status: int = 0) -> None:
    """Stop Java and exit, without finishing current work."""
    with _EXITING:
        try:
            engine.halt()
        finally:
            os._exit(status)


if __name__ == "__main__":
    main()
