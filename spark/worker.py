"""The cleanup worker: one warm session and the schedule. Started by the server, it ends with it."""

import os
import signal
import sys
import threading
import time
from typing import TextIO

from conclave.clock import SystemClock
from conclave.config.settings import Config
from conclave.logs import configure_logging
from conclave.system.worker_protocol import EXIT_GIVE_UP, Ended, Fault, Message, State, to_line
from spark.engine import CleanupError, Engine, SparkStartError
from spark.run import clean_up

LONGEST_SLEEP_SECONDS = 3600.0
"""An interval may be longer than the longest sleep that the system knows."""

PAUSE_SECONDS = 0.2
"""Between two runs, however long they take: else who waits for the run lock, as a backup does, might never get it."""


def main() -> None:
    """Run cleanup every ``cleanup_interval``, beginning now, until the standard input ends."""
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the server tells when to end
    tell = _take_stdout()
    configure_logging()
    config = Config.from_json(sys.stdin.readline())
    engine = Engine(config, SystemClock())
    signal.signal(signal.SIGTERM, lambda *_: _end(engine))
    threading.Thread(target=_end_with_server, args=(engine,), daemon=True).start()
    try:
        _work(engine, config.cleanup_interval, tell)
    finally:
        engine.abandon()


def _work(engine: Engine, interval: int, tell: TextIO) -> None:
    try:
        engine.warm_up()
    except CleanupError as error:
        _say(tell, Fault(str(error)))
        raise SystemExit(1 if isinstance(error, SparkStartError) else EXIT_GIVE_UP) from None
    _say(tell, State.READY)
    due = time.monotonic()
    while True:
        while (left := due - time.monotonic()) > 0:
            time.sleep(min(left, LONGEST_SLEEP_SECONDS))
        due = max(due + interval, time.monotonic())
        try:
            done = clean_up(engine, tell=lambda state: _say(tell, state))
            _say(tell, Ended(done.to_mapping(), due - time.monotonic()))
            if done.error and not engine.is_sound():
                raise SystemExit("the Spark session has died")
        except CleanupError as error:
            _say(tell, Fault(str(error), due - time.monotonic()))
        time.sleep(PAUSE_SECONDS)


def _take_stdout() -> TextIO:
    """Keep the standard output for what the server is told; whatever else writes there goes to stderr."""
    tell = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return tell


def _say(tell: TextIO, message: Message) -> None:
    tell.write(to_line(message))


def _end_with_server(engine: Engine) -> None:
    """End with the server, however it ended: its side of the pipe closes then."""
    while sys.stdin.read(4096):
        pass
    _end(engine)


def _end(engine: Engine) -> None:
    """End without finishing what is under way; Java follows."""
    try:
        engine.halt()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
