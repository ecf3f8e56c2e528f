"""The hot paths, each beside what it cannot beat: a bare aiohttp handler, or a bare synced commit.

The bare handler gets the same bytes as Conclave, and answers the same body. All of a case are asked in turn, a round of
each, so that the machine's moods reach all of them. The table has medians of the rounds and ratios of these medians.
Cleanup's engine is SQL, so that no Java shares the cores.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

from bench import disk, requests, stores
from bench.bare import Bare
from bench.figures import Figure, at_least, latencies, percentile, single, spread
from bench.load import Load, Outcome, generator, run
from bench.process import Server
from conclave.store.engine import sqlite
from conclave.wire.formats import Format

USERS, GROUPS, MEMBERS = 128, 64, 8
PAGE, BODY_BYTES = 100, 1024
ROUNDS = int(os.environ.get("CONCLAVE_BENCH_ROUNDS", "3"))
ROUND_SECONDS = 2.0
WRITTEN = {"protobuf": Format.PROTOBUF, "JSON": Format.JSON}

Rounds = Mapping[str, Sequence[Outcome]]
Side = Callable[[], Outcome]


def ratios(folder: Path) -> list[Figure]:
    """Pages, "nothing new" and sends of a default server with 128 users in 64 groups of 8."""
    with generator() as process:
        return _Hot(folder, process).measure()


class _Hot:
    def __init__(self, folder: Path, process: ProcessPoolExecutor) -> None:
        now = int(time.time())
        self._folder = folder
        self._process = process
        self._body = os.urandom(BODY_BYTES)
        shape = stores.Shape(USERS, GROUPS, MEMBERS, body=self._body)
        self._store = stores.build(folder, "sql", now, shape, [now] * PAGE)
        self._sent = GROUPS * PAGE
        """Messages that have to be in the store."""

    def measure(self) -> list[Figure]:
        with Server(self._store.config) as server:
            server.wait_for("cleanup_run")
            self._port = int(server.url.rpartition(":")[2])
            figures = [
                *self._pages(32, least=0.55),
                *self._pages(1, least=0.7),
                *self._nothing_new(),
                *self._sends_at_once(),
                *self._sends_of_one(),
                *self._sends_of_some(),
            ]
        self._require_all_sent()
        return figures

    def _pages(self, connections: int, least: float) -> list[Figure]:
        asked = {name: requests.fetches(self._store, connections, each, 0, PAGE) for name, each in WRITTEN.items()}
        bodies = [self._body] * PAGE
        answers = {
            name: requests.require_pages(self._port, asked[name], each, bodies) for name, each in WRITTEN.items()
        }
        plain = {name: asked[name][0][n] for n, name in enumerate(WRITTEN)}  # of a group each: a path has one answer
        with Bare({requests.path(plain[name]): answers[name] for name in WRITTEN}) as bare:
            sides: dict[str, Side] = {}
            for name in WRITTEN:
                sides[f"bare handler, {name}"] = partial(self._run, bare.port, [[plain[name]]] * connections)
                sides[name] = partial(self._run, self._port, asked[name])
            rounds = in_turn(sides)
        _require_lengths(rounds, {name: len(each.body) for name, each in answers.items()})
        what = f"page of {PAGE} x 1 KiB, {_at_once(connections)}"
        return [
            *rates(what, rounds),
            _share(f"{what}: protobuf / bare handler", rounds["protobuf"], rounds["bare handler, protobuf"], least),
            _share(f"{what}: JSON / bare handler", rounds["JSON"], rounds["bare handler, JSON"]),
            _share(f"{what}: JSON / protobuf", rounds["JSON"], rounds["protobuf"], 0.75),
            latencies(f"{what}, protobuf", every(rounds["protobuf"])),
        ]

    def _nothing_new(self) -> list[Figure]:
        asked = requests.fetches(self._store, 32, Format.PROTOBUF, PAGE, PAGE)
        answer = requests.require_pages(self._port, asked, Format.PROTOBUF, [])
        plain = asked[0][0]
        with Bare({requests.path(plain): answer}) as bare:
            rounds = in_turn(
                {
                    "bare handler": partial(self._run, bare.port, [[plain]] * 32),
                    "protobuf": partial(self._run, self._port, asked),
                }
            )
        _require_lengths(rounds, {"protobuf": 0})
        what = "nothing new, 32 connections"
        return [
            *rates(what, rounds),
            _share(f"{what}: protobuf / bare handler", rounds["protobuf"], rounds["bare handler"], 0.65),
            latencies(f"{what}, protobuf", every(rounds["protobuf"])),
        ]

    def _sends_at_once(self) -> list[Figure]:
        plain = requests.sends(self._store, 1, Format.PROTOBUF, BODY_BYTES)[0][0]
        answer = requests.require_number(self._port, plain, Format.PROTOBUF)
        self._sent += 1
        with Bare({requests.path(plain): answer}) as bare:
            beside = partial(self._run, bare.port, [[plain]] * USERS)
            rounds = in_turn({"bare handler": beside, **self._senders(USERS)})
        what = f"send of 1 KiB, {USERS} connections"
        took = every(rounds["protobuf"])
        tail = percentile(took, 0.99) / percentile(took, 0.5)
        return [
            *rates(what, rounds),
            _share(f"{what}: protobuf / bare handler", rounds["protobuf"], rounds["bare handler"], 0.5),
            _share(f"{what}: JSON / protobuf", rounds["JSON"], rounds["protobuf"], 0.75),
            latencies(f"{what}, protobuf", took),
            single(f"{what}: p99 / median", tail, "times", most=3),
        ]

    def _sends_of_one(self) -> list[Figure]:
        beside = self._folder / "beside"
        beside.mkdir()
        sides: dict[str, Side] = {
            "synced SQLite commit": partial(self._do, disk.commits, beside / "commits.db", BODY_BYTES, ROUND_SECONDS),
            "4 KiB appended, fsync": partial(self._do, disk.appended_syncs, beside / "appended", ROUND_SECONDS / 4),
            "4 KiB over others, fdatasync": partial(
                self._do, disk.overwritten_syncs, beside / "overwritten", ROUND_SECONDS / 4
            ),
        }
        rounds = in_turn({**sides, **self._senders(1)})
        what = "send of 1 KiB, 1 connection"
        commit = rounds["synced SQLite commit"]
        return [
            *rates(what, rounds),
            _share(f"{what}: protobuf / SQLite commit", rounds["protobuf"], commit, 0.5),
            _share(f"{what}: JSON / protobuf", rounds["JSON"], rounds["protobuf"], 0.75),
            latencies(f"{what}, protobuf", every(rounds["protobuf"])),
            *(latencies(f"the disk beside it: {name}", every(rounds[name])) for name in sides),
        ]

    def _sends_of_some(self) -> list[Figure]:
        rounds = in_turn(self._senders(16))
        what = "send of 1 KiB, 16 connections"
        return [*rates(what, rounds), latencies(f"{what}, protobuf", every(rounds["protobuf"]))]

    def _senders(self, connections: int) -> dict[str, Side]:
        return {
            name: partial(self._send, requests.sends(self._store, connections, written, BODY_BYTES))
            for name, written in WRITTEN.items()
        }

    def _send(self, asked: Sequence[Sequence[bytes]]) -> Outcome:
        outcome = self._run(self._port, asked)
        self._sent += outcome.answered
        return outcome

    def _run(self, port: int, asked: Sequence[Sequence[bytes]]) -> Outcome:
        return self._do(run, Load(port, asked, ROUND_SECONDS))

    def _do(self, work: Callable[..., Outcome], *args: object) -> Outcome:
        return self._process.submit(work, *args).result()

    def _require_all_sent(self) -> None:
        """Raise RuntimeError unless the store has each message that was answered, and no other."""
        with closing(sqlite.connect(self._store.config.database, readonly=True)) as connection:
            [stored] = connection.execute("SELECT COUNT(*) FROM messages").fetchone()
        if stored != self._sent:
            raise RuntimeError(f"{self._sent:,} messages were sent and answered, {stored:,} are stored")


def in_turn(sides: Mapping[str, Side]) -> Rounds:
    """Return what each of ``sides`` did in each round."""
    rounds = [{name: side() for name, side in sides.items()} for _ in range(ROUNDS)]
    return {name: [each[name] for each in rounds] for name in sides}


def every(rounds: Sequence[Outcome]) -> list[float]:
    return [seconds for each in rounds for seconds in each.seconds]


def rates(what: str, rounds: Rounds) -> list[Figure]:
    """A row of each side; and one that says how much of a core the generator took, where it was most."""
    shown = [spread(f"{what}: {name}", [each.rate for each in outcomes], "/s") for name, outcomes in rounds.items()]
    busy = max(each.busy for outcomes in rounds.values() for each in outcomes)
    return [*shown, single(f"{what}: the generator's share of a core, at most", busy * 100, "%")]


def _share(what: str, one: Sequence[Outcome], other: Sequence[Outcome], least: float | None = None) -> Figure:
    value = statistics.median(each.rate for each in one) / statistics.median(each.rate for each in other)
    return single(what, value, "times") if least is None else at_least(what, value, "times", least)


def _require_lengths(rounds: Rounds, lengths: Mapping[str, int]) -> None:
    """Raise RuntimeError if an answer was longer or shorter than the one that was looked into."""
    for name, length in lengths.items():
        if found := {each for outcome in rounds[name] for each in outcome.lengths} - {length}:
            raise RuntimeError(f"{name}: answers of {found} bytes instead of {length}")


def _at_once(connections: int) -> str:
    return f"{connections} connection{'s' if connections > 1 else ''}"
