"""MLS in the client, in groups of 2, 50 and 500 members of suite 0x0006.

Processor time of the thread: nothing here waits. Medians. Commits and joins are measured in a group in which nobody but
its creator has committed, where a commit is encrypted to every member: the most that they take. Where CONCLAVE_MLS_PEER
names the live peer of mls-rs, its figures stand beside these: the time of a request to it, over a pipe.
"""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.figures import Figure, spread
from conclave.client.mls import MlsGroup, OwnKeyPackage, create_key_package, suite_of
from tests.client.mls.actors import Peer, PeerProcess

SUITE = suite_of(6)
TEXT = b"x" * 200
ROUNDS = 30
T = TypeVar("T")


@dataclass(frozen=True)
class Targets:
    """Milliseconds at most."""

    members: int
    commit: float
    join: float


SIZES = (Targets(2, 10, 10), Targets(50, 100, 200), Targets(500, 1_000, 3_000))


def groups(_folder: Path) -> list[Figure]:
    """Messages, commits and joins."""
    figures = [figure for targets in SIZES for figure in _of_size(targets)]
    program = os.environ.get("CONCLAVE_MLS_PEER")
    if program is not None:
        process = PeerProcess(Path(program))
        figures += [figure for targets in SIZES for figure in _of_peer(process, targets.members)]
        process.close()
    return figures


def _of_size(targets: Targets) -> list[Figure]:
    now, count = int(time.time()), targets.members
    creator, reader_package, last = (_package(now) for _ in range(3))
    alice = MlsGroup.create(creator, now)
    others = [reader_package, *(_package(now) for _ in range(count - 2))]
    made = alice.commit(now, add=[own.key_package for own in others])
    alice.apply_pending(now)
    if made.welcome is None:
        raise AssertionError("no member was added")
    bob, _ = MlsGroup.join(made.welcome, [reader_package], now)
    encrypted, decrypted = _messages(alice, bob, now)
    rounds = max(3, ROUNDS // count)
    commits, applied, joins, sizes = [], [], [], []
    for _ in range(rounds):
        commits.append(_timed(lambda: alice.commit(now))[0])
        message = alice.pending[0]
        applied.append(_timed(partial(bob.receive, message, now))[0])
        alice.receive(message, now)
        invited = alice.commit(now, add=[last.key_package])
        sizes.append(len(invited.welcome or b""))
        joins.append(_timed(partial(_join, invited.welcome, last, now))[0])
        alice.drop_pending()
    return [
        spread(f"encrypt 200 bytes, {count} members", encrypted, "ms", 1),
        spread(f"decrypt them, {count} members", decrypted, "ms", 1),
        spread(f"make a commit, {count} members", commits, "ms", targets.commit),
        spread(f"apply it elsewhere, {count} members", applied, "ms", targets.commit),
        spread(
            f"join by a Welcome of {statistics.median(sizes) / 1000:,.0f} kB, {count} members",
            joins,
            "ms",
            targets.join,
        ),
        spread(f"store the state of {len(bob.to_bytes()) / 1000:,.0f} kB, {count} members", _stores(bob), "ms"),
    ]


def _of_peer(process: PeerProcess, count: int) -> list[Figure]:
    alice, bob, last = Peer(process), Peer(process), Peer(process)
    alice.create()
    packages = [one.key_package() for one in (bob, *(Peer(process) for _ in range(count - 2)))]
    _, welcome = alice.commit(packages, [], private=False)
    alice.receive(alice.committed)
    bob.join(welcome or b"")
    took: dict[str, list[float]] = {name: [] for name in ("encrypt", "decrypt", "commit", "apply", "join")}
    for _ in range(max(3, ROUNDS // count)):
        sent, message = _timed(lambda: alice.encrypt(TEXT), time.perf_counter)
        took["encrypt"].append(sent)
        took["decrypt"].append(_timed(partial(bob.read, message), time.perf_counter)[0])
        made, (commit, _) = _timed(lambda: alice.commit([], [], private=False), time.perf_counter)
        took["commit"].append(made)
        alice.receive(alice.committed)
        took["apply"].append(_timed(partial(bob.receive, commit), time.perf_counter)[0])
    for _ in range(3):
        _, welcome = alice.commit([last.key_package()], [], private=False)
        took["join"].append(_timed(partial(last.join, welcome or b""), time.perf_counter)[0])
        alice.ask("clear_pending")
        last.leave()
    return [spread(f"the peer: {name}, {count} members", values, "ms") for name, values in took.items()]


def _join(welcome: bytes | None, own: OwnKeyPackage, now: int) -> MlsGroup:
    return MlsGroup.join(welcome or b"", [own], now)[0]


def _messages(alice: MlsGroup, bob: MlsGroup, now: int) -> tuple[list[float], list[float]]:
    encrypted, decrypted = [], []
    for _ in range(5 * ROUNDS):
        took, message = _timed(lambda: alice.encrypt(TEXT))
        encrypted.append(took)
        decrypted.append(_timed(partial(bob.receive, message, now))[0])
    return encrypted, decrypted


def _stores(group: MlsGroup) -> list[float]:
    return [_timed(group.to_bytes)[0] for _ in range(ROUNDS)]


def _package(now: int) -> OwnKeyPackage:
    return create_key_package(SUITE, os.urandom(16), SUITE.signature_key_pair().private, now)


def _timed(call: Callable[[], T], clock: Callable[[], float] = time.thread_time) -> tuple[float, T]:
    """Return the milliseconds of a call, and what it returns."""
    began = clock()
    result = call()
    return (clock() - began) * 1000, result
