"""Archives of several sizes, each larger than the one before: what grows with the archive, and what does not.

``CONCLAVE_BENCH_LARGE`` sets the sizes, in messages. The largest of the docs takes 16 GB of disk.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.request import urlopen

import uvloop

from bench import archives, stores
from bench.archive import SHORTENED, fill, require, shorten
from bench.archive_serving import anywhere
from bench.curves import renew
from bench.figures import Figure, latencies, percentile, single, spread
from bench.plots import Axis, lines
from bench.process import Cleaning, Server, descendants, name, resident_mb
from conclave.archive.layout import DAY
from conclave.config.archive import ArchiveConfig
from conclave.config.cleanup import CleanupConfig

SIZES = [int(each) for each in os.environ.get("CONCLAVE_BENCH_LARGE", "1000000,10000000,50000000").split(",")]
GROUPS = 2_000
LIFETIME_DAYS, ARCHIVED_DAYS = 30, 20
"""The archive has the messages of the days before the last ten, so that they expire day by day from then on."""

MOVED = 600_000
"""Messages that move into the archive, two batches."""

DAYS_DROPPED = 3
SHORTENED_BY = 4
"""In one of 20 groups the oldest 4 of 20 days go: a hundredth of all."""

EMPTY_RUNS, PAGES = 5, 500

EMPTY, A_DAY, SCATTERED, MOVING = "nothing due", "a day of all groups", "1% in 5% of the groups", f"moving {MOVED:,}"
START, A_PAGE = "start to the first answer", "page of 100 from anywhere"
A_SLOW_PAGE = f"{A_PAGE}, p95"
BACKUPS = ("first backup", "another backup")
VERIFY, RESTORE = "verify", "restore of a group"

DRAWN = {
    "archive-sizes-looks": ("Pages and commands, by the size of the archive", (A_SLOW_PAGE, *BACKUPS, VERIFY, RESTORE)),
}
"""The plots of the docs: their titles, and which of what is measured they show."""

WATCH_SECONDS = 0.2


@dataclass
class Size:
    """What is measured of an archive of one size."""

    count: int
    seconds: dict[str, float] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def note(self, what: str, *seconds: float) -> None:
        self.seconds[what] = sorted(seconds)[len(seconds) // 2]
        self.figures.append(spread(f"{self.count:,}: {what}", seconds, "s"))


def sizes(folder: Path) -> list[Figure]:
    """Do the same with each size, and renew the plot of how long what takes."""
    measured = []
    for count in SIZES:
        measured.append(_measure(folder / str(count), count))
        shutil.rmtree(folder / str(count))
    across = Axis("messages in the archive", is_log=True, ticks=SIZES if len(SIZES) > 1 else ())
    for plot, (title, whats) in DRAWN.items():
        taken = {what: [(each.count, each.seconds[what]) for each in measured] for what in whats}
        renew(plot, lines(title, across, Axis("s", is_log=True), taken))
    return [figure for each in measured for figure in each.figures]


def _measure(folder: Path, count: int) -> Size:
    folder.mkdir()
    size = Size(count)
    now = (int(time.time()) // DAY - DAYS_DROPPED) * DAY
    lifetime = LIFETIME_DAYS * DAY
    shape = stores.Shape(users=1, groups=GROUPS, members=1, expiries=(lifetime,))
    store = stores.build(folder, "spark", now, shape, [])
    newest = now - (LIFETIME_DAYS - ARCHIVED_DAYS) * DAY
    archive = archives.Archive(store, [count // GROUPS] * GROUPS, newest, lifetime, ARCHIVED_DAYS)
    began = time.perf_counter()
    archive.build()
    size.figures.append(single(f"{count:,}: made in", time.perf_counter() - began, "s"))
    size.figures.append(single(f"{count:,}: archive on disk", archives.size_mb(archive.path), "MB"))
    _clean(size, store, archive, now)
    _serve(size, store)
    _copy(size, folder)
    _command(size, RESTORE, folder, "archive", "restore", store.groups[1])
    size.figures += [
        single(f"{count:,}: most resident, {what}", most, "MB") for what, most in sorted(size.memory.items())
    ]
    return size


def _clean(size: Size, store: stores.Store, archive: archives.Archive, now: int) -> None:
    """Runs: nothing due, days of all groups, the oldest days of some groups, and a move."""
    config = replace(store.config, archive=ArchiveConfig(after=7 * DAY, margin=DAY))
    left, a_day = size.count, size.count // ARCHIVED_DAYS
    with _watched(size, "cleanup"), Cleaning(config) as cleaning:
        size.note(EMPTY, *(cleaning.run(now)["seconds"] for _ in range(EMPTY_RUNS + 1)))
        days = [cleaning.run(now + day * DAY) for day in range(1, 1 + DAYS_DROPPED)]
        if any(report["deleted"]["expired"] != a_day for report in days):
            raise RuntimeError(f"of one day each: {[report['deleted'] for report in days]}")
        size.note(A_DAY, *(report["seconds"] for report in days))
        shorten(store, LIFETIME_DAYS * DAY - SHORTENED_BY * DAY)
        now += DAYS_DROPPED * DAY
        erased = cleaning.run(now)
        left -= DAYS_DROPPED * a_day + erased["deleted"]["expired"]
        size.note(SCATTERED, erased["seconds"])
        require(archive.path, left)
        each = MOVED // GROUPS
        fill(store, [now - 9 * DAY + n * DAY // each for n in range(each)])
        moved = cleaning.run(now)
        if moved["archived"] != MOVED:
            raise RuntimeError(f"moved: {moved['archived']:,} of {MOVED:,}")
        size.note(MOVING, moved["seconds"])


def _serve(size: Size, store: stores.Store) -> None:
    """A start, and pages from anywhere. The SQL engine leaves an archive alone: nothing runs meanwhile."""
    config = replace(store.config, cleanup=CleanupConfig(engine="sql"))
    began = time.perf_counter()
    with Server(config) as server:
        urlopen(f"{server.url}/healthz").read()
        size.note(START, time.perf_counter() - began)
        server.wait_for("cleanup_unavailable")
        each = size.count // GROUPS
        first = each * (DAYS_DROPPED + 1) // ARCHIVED_DAYS  # some of today has expired too
        groups = [group for n, group in enumerate(store.groups) if n % SHORTENED]
        took = uvloop.run(anywhere(server, store.tokens[0], groups, range(first, each), PAGES))
        size.memory["server"] = resident_mb(server.process.pid)
    server.file.write_text(server.file.read_text().replace('"sql"', '"spark"'))  # for commands, which look at it all
    size.figures.append(latencies(f"{size.count:,}: {A_PAGE}", took))
    size.seconds[A_SLOW_PAGE] = percentile(took, 0.95)


def _copy(size: Size, folder: Path) -> None:
    """Read all of it: a first backup, one after it, which has little to do, and verify."""
    for what in BACKUPS:
        _command(size, what, folder, "backup", str(folder / "backups"))
    shutil.rmtree(folder / "backups")
    _command(size, VERIFY, folder, "archive", "verify")


def _command(size: Size, what: str, folder: Path, *words: str) -> None:
    with _watched(size, what):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-P", "-m", "conclave", *words, "--config", str(folder / "conclave.toml")],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        size.note(what, time.perf_counter() - began)


@contextmanager
def _watched(size: Size, what: str) -> Iterator[None]:
    """Note the most that the processes have in memory that are started in the block, Java apart from the others."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            found: dict[str, float] = defaultdict(float)
            for pid in descendants(os.getpid()):
                try:
                    found["Java" if name(pid) == "java" else "Python"] += resident_mb(pid)
                except (OSError, StopIteration):  # it has just ended
                    continue
            for kind, most in found.items():
                size.memory[f"{what}: {kind}"] = max(size.memory[f"{what}: {kind}"], most)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
