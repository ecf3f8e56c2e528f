"""Takes over messages that were stored before there were keys: a run does its own work first, and then some of this.

The hot store's segments go one after the other, beside a server that serves. The archive's partitions follow in later
runs, see ``archive/take_over.py``. Whatever a run that dies has done stays done.
"""

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from conclave.archive import numbers
from conclave.failpoints import reach
from conclave.keys.file import KeyFileError
from conclave.keys.store import KeyStore
from conclave.store import at_rest, compaction
from conclave.store.archive import moves
from conclave.store.engine.connection import of_store
from conclave.store.engine.faults import StoreError
from conclave.store.engine.sqlite import Step, done
from conclave.store.resources import message_keys, taking_over
from conclave.store.resources.taking_over import GROUPS_AT_ONCE, RANGES_AT_ONCE, RUN_SECONDS, Lowered
from spark.environment import RunEnvironment
from spark.hot_store import Hot
from spark.pacer import Pacer


def keys_to_move(engine: RunEnvironment, hot: Hot) -> KeyStore | None:
    """Return the keys with which bodies may move that lie as they came; None: those segments have to stay as they are.

    While a batch is on its way to the archive its messages must not change: they are compared with those there.
    """
    if engine.is_hot_only or hot.read(taking_over.is_done) or hot.read(moves.batch_under_way) is not None:
        return None
    try:
        return engine.keys(hot)
    except StoreError:
        return None  # ``lost_keys.lose`` tells; what is due is erased all the same


def go_on(engine: RunEnvironment, hot: Hot, pacer: Pacer) -> None:
    """Take over segments of the hot store, for a while, and note of which groups all is done.

    The connection of ``pacer`` has the keys, see ``keys_to_move``; without them nothing is done. Raises StoreError.
    """
    connection = pacer.connection
    keys = of_store(connection).keys
    if keys is None:
        return
    try:
        if at_rest.plain_segments(connection):
            _segments(connection, keys, pacer)
        if not at_rest.plain_segments(connection):
            _groups(engine, hot, keys, pacer)
    except (KeyFileError, numbers.UnreadableError) as error:
        raise StoreError(str(error)) from error


def _segments(connection: sqlite3.Connection, keys: KeyStore, pacer: Pacer) -> None:
    keys.begin(taking_over.begun_in(connection))  # now: no sender waits for the lock meanwhile
    reach("keying.roots_drawn")
    end = time.monotonic() + RUN_SECONDS
    pacer.run(compaction.take_over(connection, lambda: time.monotonic() > end))
    reach("keying.segments_gone")
    if not taking_over.has_plain_segments(connection):
        listed = taking_over.plain_groups(connection)
        pacer.run(_listing(connection, listed))
        reach("keying.parts_listed")


def _listing(connection: sqlite3.Connection, listed: Sequence[int]) -> Iterator[Step]:
    for at in range(0, len(listed), GROUPS_AT_ONCE):
        yield partial(done, taking_over.list_parts, connection, listed[at : at + GROUPS_AT_ONCE])
    yield partial(done, taking_over.finish_hot, connection)


def _groups(engine: RunEnvironment, hot: Hot, keys: KeyStore, pacer: Pacer) -> None:
    """Lower ``keyed_after`` of the groups of which no message lies as it came."""
    archived = numbers.in_table(engine.config.archive_path) if hot.read(moves.has_parts) else {}
    found = hot.read(taking_over.lowered, archived)
    # A root that is drawn later would have keys of numbers that are no message's any more.
    keys.begin((each.group_id, each.last) for each in found.values() if each.keyed_after < each.last)
    pacer.run(_lowering(pacer.connection, found))
    reach("keying.lowered")


def _lowering(connection: sqlite3.Connection, found: Mapping[int, Lowered]) -> Iterator[Step]:
    for key, each in found.items():
        for at in range(0, len(each.unused), RANGES_AT_ONCE):
            yield partial(done, message_keys.note_ranges, connection, key, each.unused[at : at + RANGES_AT_ONCE])
        yield partial(done, taking_over.lower, connection, key, each.keyed_after)
    yield partial(done, taking_over.finish, connection)
