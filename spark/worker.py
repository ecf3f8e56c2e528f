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
from conclave.logs import configure_logging, get_logger
from conclave.retention.jobs import Scope, Timetable, schedule
from conclave.system.worker_protocol import EXIT_GIVE_UP, Ended, Fault, Message, State, to_line
from spark.engine import CleanupError, Engine, SparkStartError
from spark.run import clean_up

log = get_logger(__name__)

LONGEST_SLEEP_SECONDS = 3600.0
"""A sleep lasts at most an hour: an interval may be longer than the longest sleep that the system allows."""

PAUSE_SECONDS = 0.2
"""The worker pauses at least 0.2 s between two runs, however long they take.

Otherwise others who wait for the run lock, such as a backup, might never get it.
"""


class Orders:
    """What the server has the worker go by: its settings, which may change while the worker works or waits."""

    def __init__(self, config: Config) -> None:
        """Begin with ``config``."""
        self.newest = config
        self._has_other_jobs = threading.Event()

    def receive(self, config: Config) -> None:
        """Take other settings. Those of the log count at once, all others from the next run on."""
        configure_logging(config.log)
        is_other = _jobs(config) != _jobs(self.newest)
        self.newest = config
        if is_other:
            self._has_other_jobs.set()

    def wait(self, seconds: float) -> bool:
        """Wait for at most so many seconds; return at once, and True, if there are other jobs to do."""
        if not self._has_other_jobs.wait(seconds):
            return False
        self._has_other_jobs.clear()
        return True


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
    engine, orders = Engine(config, SystemClock()), Orders(config)
    signal.signal(signal.SIGTERM, lambda *_: _end(engine))
    threading.Thread(target=_listen_to_server, args=(engine, orders), daemon=True).start()
    try:
        _work(engine, orders, tell)
    finally:
        engine.abandon()


def _work(engine: Engine, orders: Orders, tell: TextIO) -> None:
    """Do each job when it is due, and all of them anew when there are others."""
    try:
        engine.warm_up()
    except CleanupError as error:
        _say(tell, Fault(str(error)))
        raise SystemExit(1 if isinstance(error, SparkStartError) else EXIT_GIVE_UP) from None
    _say(tell, State.READY)
    while True:
        _work_by(_jobs(orders.newest), orders.newest.cleanup_interval, engine, orders, tell)


def _work_by(jobs: list[tuple[Scope, int]], again: int, engine: Engine, orders: Orders, tell: TextIO) -> None:
    """Do each of ``jobs``, with the seconds from run to run, when it is due: one at a time, the longest due first.

    ``again``: one that failed is tried again after so many seconds at most. Returns when there are other jobs.
    """
    table = Timetable([interval for _, interval in jobs], again, time.monotonic())
    while True:
        chosen, due = table.next()
        while (left := due - time.monotonic()) > 0:
            if orders.wait(min(left, LONGEST_SLEEP_SECONDS)):
                return
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
        if orders.wait(0):
            return


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


def _listen_to_server(engine: Engine, orders: Orders) -> None:
    """Take what the server sends until it ends, then end. Its side of the pipe closes even if it crashes."""
    while line := sys.stdin.readline():
        orders.receive(Config.from_json(line))
    _end(engine)


def _end(engine: Engine) -> None:
    """End without finishing the work under way; Java ends too."""
    try:
        engine.halt()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
