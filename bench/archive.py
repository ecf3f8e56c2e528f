"""What cleanup runs cost that move messages to the archive, or erase them there."""

import os
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from deltalake import DeltaTable, QueryBuilder

from bench import archives, stores
from bench.figures import Figure, at_least, single, spread
from bench.process import Cleaning
from conclave.actions.messages import append
from conclave.archive.layout import DAY
from conclave.config.archive import ArchiveConfig
from conclave.retention import marks
from conclave.store.engine import sqlite

MESSAGES = int(os.environ.get("CONCLAVE_BENCH_MESSAGES", "1000000"))
"""In the greatest archive that is erased from; the figures in the docs are those of 10,000,000."""

SMALL = 1_000_000
"""In the other archive, beside which a day of the greater one may not take much longer."""

MOVED = max(MESSAGES, 3_000_000)
"""In the database, on their way to the archive: fewer would show how a run begins and ends."""

GROUPS, WARM_UP = 2_000, 10
"""WARM_UP: messages of each group that move before time is taken."""

LIFETIME_DAYS, DAYS_DROPPED = 25, 3
SHORTENED, SHORTENED_BY = 20, 5
"""In one of so many groups the messages of so many days go: a hundredth of all."""

EMPTY_RUNS = 5


def runs(folder: Path) -> list[Figure]:
    figures = _moving(folder / "moving")
    days = []
    for count in sorted({SMALL, MESSAGES}):
        more, day = _erasing(folder / str(count), count)
        figures += more
        days.append(day)
    if len(days) > 1:
        figures.append(single(f"one day of {MESSAGES:,} / of {SMALL:,}", days[1] / days[0], "times", most=1.3))
    return figures


def _moving(folder: Path) -> list[Figure]:
    """Messages of 400 days, sent by all groups in turn, move at once."""
    folder.mkdir()
    now = int(time.time())
    store = stores.build(folder, "spark", now, stores.Shape(users=1, groups=GROUPS, members=1), [])
    config = replace(store.config, archive=ArchiveConfig(after=7 * DAY, margin=DAY))
    each = MOVED // GROUPS
    times = [now - 8 * DAY - archives.DAYS * DAY * (each - n) // each for n in range(each)]
    with Cleaning(config) as cleaning:
        fill(store, times[:WARM_UP])
        cleaning.run(now)
        fill(store, times[WARM_UP:])
        hot = store.config.database.stat().st_size
        report = cleaning.run(now + 1)
    moved = (each - WARM_UP) * GROUPS
    if report["archived"] != moved:
        raise RuntimeError(f"moved: {report['archived']:,} of {moved:,}")
    size, after = archives.size_mb(config.archive_path), store.config.database.stat().st_size
    _clear(config.archive_path)
    return [
        single(f"moving {moved:,} messages: the run", report["seconds"], "s"),
        at_least("moved", moved / report["seconds"], "rows/s", 50_000),
        single(f"archive of {MOVED:,} messages", size, "MB"),
        Figure("database file before, after", f"{hot / 1e6:,.0f} MB, {after / 1e6:.1f} MB"),
    ]


def _erasing(folder: Path, count: int) -> tuple[list[Figure], float]:
    """Erase from an archive of messages that live for some weeks; return the seconds of one day, too."""
    folder.mkdir()
    now = int(time.time()) // DAY * DAY
    lifetime = LIFETIME_DAYS * DAY
    store = stores.build(
        folder, "spark", now, stores.Shape(users=1, groups=GROUPS, members=1, expiries=(lifetime,)), []
    )
    archive = archives.Archive(store, [count // GROUPS] * GROUPS, now, lifetime, LIFETIME_DAYS)
    archive.build()
    before = archives.size_mb(archive.path)
    with Cleaning(store.config) as cleaning:
        empty = [cleaning.run(now) for _ in range(1 + EMPTY_RUNS)]
        # A second before all of the first day has expired nothing of it has: its messages lie on whole seconds.
        days = [cleaning.run(now + day * DAY) for day in range(1, 1 + DAYS_DROPPED)]
        require(archive.path, count - count // LIFETIME_DAYS * DAYS_DROPPED)
        shorten(store, lifetime - SHORTENED_BY * DAY)
        erased = cleaning.run(now + DAYS_DROPPED * DAY)
        require(archive.path, count - count // LIFETIME_DAYS * DAYS_DROPPED - erased["deleted"]["expired"])
    _clear(archive.path)
    dropped = [report["deleted"]["expired"] for report in days]
    if dropped != [count // LIFETIME_DAYS] * DAYS_DROPPED:
        raise RuntimeError(f"of one day each: {dropped}")
    seconds = [report["seconds"] for report in days]
    what = f"of {count:,}"
    return [
        single(f"archive {what} messages", before, "MB"),
        spread(f"nothing due {what}, warm", _seconds(empty[1:]), "s", most=3),
        spread(f"one day {what}: {dropped[0]:,} messages, erased", seconds, "s", most=5),
        single(f"{erased['deleted']['expired']:,} {what}, in 100 groups, erased", erased["seconds"], "s", most=45),
    ], statistics.median(seconds)


def _seconds(reports: Sequence[dict[str, float]]) -> list[float]:
    return [report["seconds"] for report in reports]


def fill(store: stores.Store, sent: Sequence[int]) -> None:
    """Add one message of each group for each second in ``sent``, no two alike."""
    for second in sent:
        with stores.opened(store.config) as connection:
            for creator in store.creators:
                append(connection, creator, os.urandom(archives.BODY_BYTES), second, is_commit=False)


def shorten(store: stores.Store, lifetime: int, first: int = 0) -> None:
    """Give another lifetime to one in SHORTENED groups, from the group ``first`` on."""
    keys = [(lifetime, each.group.group_key) for each in store.creators[first::SHORTENED]]
    with closing(sqlite.connect(store.config.database)) as connection, sqlite.write_transaction(connection):
        connection.executemany("UPDATE groups SET message_expiry_seconds = ? WHERE group_key = ?", keys)
        marks.write(connection, store.config.policy)


def require(path: Path, count: int) -> None:
    """Raise unless so many messages are in the table, and no file that is not the table's on disk."""
    table = DeltaTable(str(path))
    found = QueryBuilder().register("archive", table).execute("SELECT count(*) AS n FROM archive").read_all()
    if (left := found["n"][0].as_py()) != count:
        raise RuntimeError(f"{left:,} messages are left, not {count:,}")
    if len(list(path.rglob("*.parquet"))) - len(list(path.glob("_delta_log/*.parquet"))) != len(table.file_uris()):
        raise RuntimeError("files are left that are not the table's")


def _clear(path: Path) -> None:
    """Give the disk back what the next part needs."""
    for each in path.rglob("*.parquet"):
        each.unlink()
