"""What a further worker of a cluster brings: the same runs on a cluster of one and of two, in turn."""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench import archive, archives, stores
from bench.clusters import Cluster
from bench.figures import Figure, ratio, single, spread
from bench.process import Cleaning
from conclave.archive.layout import DAY
from conclave.config.cleanup import SparkConfig

MESSAGES = int(os.environ.get("CONCLAVE_BENCH_CLUSTER", "300000"))
"""In the archive; of them a hundredth goes in each round, in 100 of 2,000 groups."""

ROUNDS, WARM_UP = 3, 2


def runs(folder: Path) -> list[Figure]:
    now = int(time.time()) // DAY * DAY
    with contextlib.ExitStack() as stack:
        places = {
            "on this machine, one core": stack.enter_context(_local(folder / "local", now)),
            "one worker": stack.enter_context(_cluster(folder / "one", now, 1)),
            "two workers": stack.enter_context(_cluster(folder / "two", now, 2)),
        }
        empty: dict[str, list[float]] = {name: [] for name in places}
        erasing: dict[str, list[float]] = {name: [] for name in places}
        for round_ in range(WARM_UP + ROUNDS):
            for name, place in places.items():
                nothing, some = place.erase(round_)
                if round_ >= WARM_UP:
                    empty[name].append(nothing)
                    erasing[name].append(some)
    erased = MESSAGES * archive.SHORTENED_BY // archive.LIFETIME_DAYS // archive.SHORTENED
    return [
        *(spread(f"nothing due, {name}", seconds, "s") for name, seconds in empty.items()),
        *(spread(f"{erased:,} of {MESSAGES:,}, in 100 groups: {name}", each, "s") for name, each in erasing.items()),
        ratio("two workers / one", erasing["two workers"], erasing["one worker"]),
        ratio("one worker / on this machine", erasing["one worker"], erasing["on this machine, one core"]),
        single("messages", MESSAGES, ""),
    ]


class _Place:
    """An archive, and what erases from it."""

    def __init__(self, store: stores.Store, cleaning: Cleaning, now: int) -> None:
        self._store = store
        self._cleaning = cleaning
        self._now = now
        self._left = MESSAGES

    def erase(self, round_: int) -> tuple[float, float]:
        """Do a run with nothing to do, and one that erases from 100 groups; return the seconds of both."""
        nothing = self._cleaning.run(self._now)
        archive.shorten(self._store, (archive.LIFETIME_DAYS - archive.SHORTENED_BY) * DAY, round_)
        report = self._cleaning.run(self._now)
        self._left -= report["deleted"]["expired"]
        archive.require(self._store.config.archive_path, self._left)
        return nothing["seconds"], report["seconds"]


@contextlib.contextmanager
def _local(folder: Path, now: int) -> Iterator[_Place]:
    store = _build(folder, now)
    with Cleaning(replace(store.config, spark=SparkConfig(master="local[1]"))) as cleaning:
        yield _Place(store, cleaning, now)


@contextlib.contextmanager
def _cluster(folder: Path, now: int, workers: int) -> Iterator[_Place]:
    store = _build(folder, now)
    with Cluster(folder / "cluster", workers, number=workers) as cluster:
        config = replace(store.config, spark=SparkConfig(master=cluster.master))
        with Cleaning(config, {"SPARK_CONF_DIR": str(cluster.settings)}) as cleaning:
            yield _Place(store, cleaning, now)


def _build(folder: Path, now: int) -> stores.Store:
    folder.mkdir()
    lifetime = archive.LIFETIME_DAYS * DAY
    shape = stores.Shape(users=1, groups=archive.GROUPS, members=1, expiries=(lifetime,))
    store = stores.build(folder, "spark", now, shape, [])
    counts = [MESSAGES // archive.GROUPS] * archive.GROUPS
    archives.Archive(store, counts, now, lifetime, archive.LIFETIME_DAYS).build()
    return store
