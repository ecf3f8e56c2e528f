"""Keys: how large the file of very many groups is, and what it costs to open, to erase and to derive."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from bench.figures import Figure, single
from conclave.keys import file
from conclave.keys.store import KeyStore
from conclave.keys.tree import Cover, Range

GROUPS = 100_000
LONGEST = 20_000
"""A group has sent up to so many messages in a year: half of them fewer than 140."""

KEPT = 30 / 365
"""The share of a year's messages that still live."""

SCATTERED, OF = 100_000, 10_000_000
"""Messages that are purged, of so many."""

NUMBERS = 20_000

OPEN = """
import sys, time
from pathlib import Path
from conclave.keys.store import KeyStore
begun = time.process_time()
store = KeyStore(Path(sys.argv[1]))
took = time.process_time() - begun
held = [line for line in open("/proc/self/status") if line.startswith("RssAnon")][0].split()[1]
store.close()
freed = [line for line in open("/proc/self/status") if line.startswith("RssAnon")][0].split()[1]
print(took, (int(held) - int(freed)) / 1024)
"""


def groups(folder: Path) -> list[Figure]:
    """Measure a file of 100,000 groups, and a purge that leaves holes everywhere."""
    path = folder / "keys"
    file.create(path)
    chance = random.Random(1)
    store = KeyStore(path)
    ids = [chance.randbytes(16) for _ in range(GROUPS)]
    last = {each: int(LONGEST ** chance.random()) for each in ids}
    store.prepare((each, 1) for each in ids)
    dead = [(each, [Range(0, int(last[each] * (1 - KEPT)))]) for each in ids]
    with _longest() as waits:
        begun = time.process_time()
        store.erase(dead)
        took = time.process_time() - begun
    mib = path.stat().st_size / 2**20
    opened = subprocess.run([sys.executable, "-P", "-c", OPEN, path], capture_output=True, text=True, check=True)
    seconds, memory = map(float, opened.stdout.split())
    with _longest() as anew:
        store.erase([(each, [Range(0, last[each])]) for each in ids])
    return [
        single(f"key file of {GROUPS:,} groups after a year", mib, "MB", 100),
        single("processor time of the run that first erases in all of them", took, "s"),
        single("its longest write", max(waits), "s", 1),
        single("the longest write of the next such run", max(anew), "s", 1),
        single("the file at its largest", path.stat().st_size / 2**20, "MB", 100),
        single("processor time of opening it", seconds, "s"),
        single("memory of each process that has it open", memory, "MB"),
        *_deriving(store, ids[0], last[ids[0]]),
        *_scattered(folder / "scattered"),
    ]


def _deriving(store: KeyStore, group_id: bytes, last: int) -> list[Figure]:
    first = last + 1
    begun = time.process_time()
    for number in range(first, first + NUMBERS):
        store.keys(group_id, [number])
    one = (time.process_time() - begun) / NUMBERS
    begun = time.process_time()
    for number in range(first + NUMBERS, first + 2 * NUMBERS, 100):
        store.keys(group_id, range(number, number + 100))
    page = (time.process_time() - begun) / NUMBERS
    return [single("a key, numbers one by one", one * 1e6, "us"), single("a key, of a page of 100", page * 1e6, "us")]


def _scattered(path: Path) -> list[Figure]:
    file.create(path)
    store, chance = KeyStore(path), random.Random(2)
    groups = [chance.randbytes(16) for _ in range(1_000)]
    store.prepare((each, 1) for each in groups)
    each_of = OF // len(groups)
    dead = []
    for group_id in groups:
        chosen = sorted(chance.sample(range(1, each_of), SCATTERED // len(groups)))
        dead.append((group_id, [Range(number, number) for number in chosen]))
    begun = time.process_time()
    store.erase(dead)
    return [
        single(f"processor time of {SCATTERED:,} messages scattered over {OF:,}", time.process_time() - begun, "s", 2),
        single("the key file afterwards", path.stat().st_size / 2**20, "MB"),
    ]


@contextmanager
def _longest() -> Iterator[list[float]]:
    """Note how long each write keeps the other process from the file."""
    waits: list[float] = []
    write = file.KeyFile._write  # noqa: SLF001 - what is measured has no other seam

    def timed(self: file.KeyFile, covers: list[tuple[bytes, Cover]]) -> None:
        begun = time.perf_counter()
        write(self, covers)
        waits.append(time.perf_counter() - begun)

    with patch.object(file.KeyFile, "_write", timed):
        yield waits
