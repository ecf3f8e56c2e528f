"""Accepts the wall clock as right, after all stored times ahead of it were brought back.

That is done in the hot store and in the archive. Until it is done, the clock guard is red. After an interruption it can
be repeated, and does the rest.
"""

import sqlite3
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from conclave.clock.steady import SteadyClock
from conclave.failpoints import reach
from conclave.store import clock_mending
from conclave.store.resources import audit, state
from conclave.system import operator_identity
from spark.hot_store import Hot

if TYPE_CHECKING:
    from spark.archive.run import ArchiveRun

ATTEMPTS = 40
"""Times are brought back at most 40 times.

A server that runs learns within a second which clock is right; until then it may store times that are ahead.
"""

PAUSE_SECONDS = 0.25
"""The pause between two attempts."""


class ClockUnsteadyError(Exception):
    """Times ahead of the clock are stored again and again, as if there were two clocks."""


def accept(hot: Hot, archive: "ArchiveRun | None", clock: SteadyClock, brought_back: Counter[str]) -> None:
    """Accept the clock. Raises ClockUnsteadyError.

    ``brought_back``: the numbers of changed rows are added to it, by table.
    """
    reading = clock.read()
    clock.resume(hot.write(state.begin_accepting, reading).floor, None)
    reach("clock.begun")
    if archive:
        archive.finish_move()  # it compares the copies with their originals, times included
    for _ in range(ATTEMPTS):
        _bring_back(hot, archive, clock, brought_back)
        reach("clock.brought_back")
        if hot.write(_accept_if_done, hot.settings.token_ttl_seconds, clock, brought_back):
            return
        time.sleep(PAUSE_SECONDS)
    raise ClockUnsteadyError("times ahead of the clock are stored again and again: is it being set?")


def _bring_back(hot: Hot, archive: "ArchiveRun | None", clock: SteadyClock, brought_back: Counter[str]) -> None:
    now = clock.read().wall
    marked = hot.read(clock_mending.marked_ahead, now)
    hot.write_steps(partial(clock_mending.hide, group_keys=marked, now=now, brought_back=brought_back))
    reach("clock.hidden")
    if archive:
        brought_back["archived_messages"] += archive.hide_ahead(marked, now)
    hot.write_steps(partial(clock_mending.lower_marks, group_keys=marked, now=now, brought_back=brought_back))
    reach("clock.marks_lowered")
    hot.write_steps(
        partial(
            clock_mending.bring_back,
            wall=lambda: clock.read().wall,
            ttl=hot.settings.token_ttl_seconds,
            brought_back=brought_back,
        )
    )
    reach("clock.hot_done")
    if archive:
        brought_back["archived_messages"] += archive.bring_back(clock.read().wall)


def _accept_if_done(connection: sqlite3.Connection, ttl: int, clock: SteadyClock, brought_back: Counter[str]) -> bool:
    reading = clock.read()
    if clock_mending.is_ahead(connection, reading.wall, ttl):
        return False
    details = {"fault": state.standing(connection).fault, "brought_back": dict(+brought_back)}
    state.accept_clock(connection, reading)
    audit.note(connection, reading.wall, operator_identity.current(), audit.AuditAction.CLOCK_ACCEPTED, details=details)
    return True
