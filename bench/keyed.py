"""A server whose messages are under keys beside one without, in turn: sends, pages, starts, and moves to the archive.

The processor time of the servers is compared too: on a machine that has other work it says more.
"""

import os
import random
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.request import urlopen

from bench import requests, stores
from bench.figures import Figure, at_least, single, spread
from bench.hot import BODY_BYTES, PAGE, ROUND_SECONDS, ROUNDS
from bench.load import Load, generator, run
from bench.process import Cleaning, Server, cpu_seconds, resident_mb
from bench.stores import Store
from conclave.actions.messages import append
from conclave.archive.layout import DAY
from conclave.config.archive import ArchiveConfig
from conclave.config.cleanup import CleanupConfig
from conclave.config.keys import KeysConfig
from conclave.config.settings import Config
from conclave.store import keyring
from conclave.store.engine import sqlite
from conclave.wire.negotiate import Format

USERS, GROUPS, MEMBERS = 128, 256, 8
PAGES = 8
"""In each group: more than a server remembers."""

REMEMBERED = 2
"""Of so many groups each reader fetches the first page again and again: few enough to stay in memory."""

CHUNK = 100
"""Pages from the store that one server is asked for, before the other one gets its turn."""

STARTS = 7

MOVES, MOVED = 4, 200_000
"""So many moves of so many messages, one a day."""

WITHOUT, UNDER = "without keys", "under keys"


@dataclass(frozen=True)
class _Turn:
    """What a server did in one turn: requests a second, and its processor seconds for each."""

    rate: float
    cpu: float


def in_turns(folder: Path) -> list[Figure]:
    """Two copies of one store, one of them under keys."""
    now = int(time.time())
    shape = stores.Shape(USERS, GROUPS, MEMBERS, body=os.urandom(BODY_BYTES))
    (folder / "plain").mkdir()
    store = stores.build(folder / "plain", "sql", now, shape, [])
    (folder / "keyed").mkdir()
    keyed = Config(
        database_path=str(folder / "keyed" / "conclave.db"), cleanup=store.config.cleanup, keys=KeysConfig(encrypt=True)
    )
    shutil.copy(store.config.database, keyed.database)
    for config in (store.config, keyed):
        _fill(store, config, [now] * PAGE * PAGES, shape.body)
    with ExitStack() as opened:
        servers = {
            WITHOUT: opened.enter_context(Server(store.config)),
            UNDER: opened.enter_context(Server(keyed, "[keys]\nencrypt = true\n")),
        }
        for server in servers.values():
            server.wait_for("cleanup_run")
        turns = _Turns(opened.enter_context(generator()), servers)
        return [
            *turns.compared("page from the store, 1 connection", 0.75, _unread(store)),
            *turns.again(
                "page from memory, 32 connections",
                1.0,
                [each[:REMEMBERED] for each in requests.fetches(store, 32, Format.PROTOBUF, 0, PAGE)],
            ),
            *turns.again(f"send, {USERS} connections", 0.92, _sends(store, USERS)),
            *turns.again("send, 1 connection", 0.95, _sends(store, 1)),
        ]


def starts_and_moves(folder: Path) -> list[Figure]:
    """Two copies of one store, one of them under keys: starts, memory after them, and moves to the archive."""
    now = int(time.time())
    each = MOVED // GROUPS
    sent = [now - day * DAY for day in range(MOVES, 0, -1) for _ in range(each)]
    configs = {name: _folder(folder / name) for name in (WITHOUT, UNDER)}
    store = stores.build(configs[WITHOUT].database.parent, "spark", now, stores.Shape(USERS, GROUPS, MEMBERS), [])
    shutil.copy(configs[WITHOUT].database, configs[UNDER].database)
    configs[UNDER] = replace(configs[UNDER], keys=KeysConfig(encrypt=True))
    for config in configs.values():
        _fill(store, config, sent, stores.BODY)
    moved: dict[str, list[float]] = {name: [] for name in configs}
    for day in range(MOVES, 0, -1):
        for name in sorted(configs, reverse=bool(day % 2)):
            with Cleaning(replace(configs[name], archive=ArchiveConfig(after=day * DAY - DAY // 2))) as cleaning:
                report = cleaning.run(now)
            if report["archived"] != each * GROUPS:
                raise RuntimeError(f"moved: {report['archived']}")
            moved[name].append(report["archived"] / report["seconds"])
    started: dict[str, list[float]] = {name: [] for name in configs}
    resident: dict[str, list[float]] = {name: [] for name in configs}
    for turn in range(STARTS):
        for name in sorted(configs, reverse=bool(turn % 2)):
            more = "[keys]\nencrypt = true\n" if name == UNDER else ""
            began = time.perf_counter()
            with Server(replace(configs[name], cleanup=CleanupConfig(engine="sql")), more) as server:
                urlopen(f"{server.url}/healthz").read()
                started[name].append(time.perf_counter() - began)
                server.wait_for("cleanup_unavailable")
                resident[name].append(resident_mb(server.process.pid))
    compared = f"{UNDER} / {WITHOUT}"
    return [
        *(spread(f"moves to the archive: {name}", rates, "/s") for name, rates in moved.items()),
        at_least(f"moves to the archive: {compared}", _median_ratio(moved), "times", 0.95),
        *(spread(f"start to the first answer: {name}", seconds, "s") for name, seconds in started.items()),
        single(f"start to the first answer: {compared}", _median_ratio(started), "times", most=1.1),
        *(spread(f"memory after a start: {name}", each, "MB") for name, each in resident.items()),
        single(f"memory after a start: {compared}", _median_ratio(resident), "times", most=1.1),
    ]


def _folder(folder: Path) -> Config:
    folder.mkdir()
    return Config(database_path=str(folder / "conclave.db"), cleanup=CleanupConfig(engine="spark"))


def _fill(store: Store, config: Config, sent: Sequence[int], body: bytes) -> None:
    """Store messages that all members have fetched, one in each group for each second in ``sent``."""
    keys = keyring.open_to_serve(config.database, config.keys_path, encrypt=config.keys.encrypt)
    with closing(sqlite.connect(config.database)) as connection, sqlite.write_transaction(connection):
        connection.keys = keys
        for second in sent:
            for creator in store.creators:
                append(connection, creator, body, second, is_commit=False)
        connection.execute(
            "UPDATE members SET watermark = (SELECT last_seq FROM groups WHERE group_key = members.group_key)"
        )
    if keys:
        keys.close()


def _median_ratio(values: dict[str, list[float]]) -> float:
    return statistics.median(under / without for under, without in zip(values[UNDER], values[WITHOUT], strict=True))


def _sends(store: Store, connections: int) -> list[list[bytes]]:
    return requests.sends(store, connections, Format.PROTOBUF, BODY_BYTES)


def _unread(store: Store) -> list[Load]:
    """Every page of every group but the first, once, in no order."""
    reader = {group: user for user, groups in enumerate(store.groups_of) for group in groups}
    asked = [
        requests.fetch(store, reader[group], group, Format.PROTOBUF, page * PAGE, PAGE)
        for group in range(GROUPS)
        for page in range(1, PAGES)
    ]
    random.shuffle(asked)
    return [Load(0, [asked[at : at + CHUNK]], None) for at in range(0, len(asked), CHUNK)]


class _Turns:
    def __init__(self, process: ProcessPoolExecutor, servers: dict[str, Server]) -> None:
        self._process = process
        self._servers = servers

    def again(self, what: str, least: float, asked: Sequence[Sequence[bytes]]) -> list[Figure]:
        """Ask the same over and over again, some rounds long."""
        return self.compared(what, least, [Load(0, asked, ROUND_SECONDS)] * 2 * ROUNDS)

    def compared(self, what: str, least: float, loads: Sequence[Load]) -> list[Figure]:
        """Put each load to one server after the other; who is first changes."""
        found: dict[str, list[_Turn]] = {name: [] for name in self._servers}
        for number, load in enumerate(loads):
            for name in sorted(found, reverse=bool(number % 2)):
                found[name].append(self._turn(self._servers[name], load))
        rates = {name: [each.rate for each in turns] for name, turns in found.items()}
        return [
            *(spread(f"{what}: {name}", each, "/s") for name, each in rates.items()),
            at_least(f"{what}: {UNDER} / {WITHOUT}", _ratio(found, lambda each: each.rate), "times", least),
            single(f"{what}: processor time, {WITHOUT} / {UNDER}", 1 / _ratio(found, lambda each: each.cpu), "times"),
        ]

    def _turn(self, server: Server, load: Load) -> _Turn:
        before = cpu_seconds(server.process.pid)
        port = int(server.url.rpartition(":")[2])
        outcome = self._process.submit(run, Load(port, load.requests, load.seconds)).result()
        return _Turn(outcome.rate, (cpu_seconds(server.process.pid) - before) / outcome.answered)


def _ratio(found: dict[str, list[_Turn]], value: Callable[[_Turn], float]) -> float:
    return _median_ratio({name: [value(each) for each in turns] for name, turns in found.items()})
