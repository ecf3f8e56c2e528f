"""Fourteen generations of backups of a server under load: with all of them, and today's keys, only what lives is read.

Every way in which messages go is there: expiry, delete-after-fetch, timers, taking back, a purge, deleted groups and
accounts. What was erased is tried with every key that 32 bytes anywhere in a key file could lead to.
"""

import asyncio
import random
import re
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from aiohttp import ClientSession

from conclave.keys import cipher, tree
from conclave.keys.cipher import AlteredError
from conclave.keys.inspection import Inspection
from tests.processes.test_kills import EXPIRY, KEYED, QUICK, Load, next_run, ranges_of, read_all
from tests.support.client import Client
from tests.support.sample import amount
from tests.support.server import ServerProcess, conclave

pytestmark = pytest.mark.system

GENERATIONS = 14
TRIED = amount(40, 6)
"""So many of the erased messages are tried with whatever lies in the key files."""


class Message(NamedTuple):
    group_id: bytes
    number: int


Stored = dict[Message, bytes]
"""Messages as they lie in a database."""


def stored_in(database: Path) -> Stored:
    """Read a database as a thief would: the rows, and where their bodies lie."""
    found: Stored = {}
    with closing(sqlite3.connect(f"file:{database}?mode=ro&immutable=1", uri=True)) as connection:
        rows = connection.execute(
            "SELECT coalesce(groups.group_id, tombstones.group_id), sequence_num, body FROM messages"
            " JOIN message_bodies USING (message_id) LEFT JOIN groups USING (group_key)"
            " LEFT JOIN tombstones USING (group_key)"
        ).fetchall()
        for group_id, number, body in rows:
            found[Message(group_id, number)] = body
    return found


def opens(key: bytes, message: Message, stored: bytes) -> bool:
    with suppress(AlteredError):
        cipher.decrypt(key, message.group_id, message.number, stored)
        return True
    return False


def key_of(found: Inspection, message: Message) -> bytes | None:
    """Derive the key of a message from what a key file has, if anything there leads to it."""
    within, leaf = message.number % tree.BLOCK, tree.BLOCK + message.number % tree.BLOCK
    for node in found.cover(message.group_id, message.number >> tree.HEIGHT):
        first, last = tree.span(node.position)
        if first <= within <= last:
            return tree.descend(node.secret, leaf, leaf.bit_length() - node.position.bit_length())
    return None


def derivable_anywhere(files: Iterable[Path], number: int) -> set[bytes]:
    """Return every key that a number could have if 32 bytes, wherever they lie, were a node at any height above it."""
    leaf, found = tree.BLOCK + number % tree.BLOCK, set[bytes]()
    for data in (path.read_bytes() for path in files):
        for filled in re.finditer(rb"[^\0](?:.{0,31}[^\0])*", data, re.DOTALL):  # nothing leads from zeros to a key
            for at in range(max(0, filled.start() - 31), filled.end()):
                secret = data[at : at + tree.SECRET_BYTES]
                if len(secret) == tree.SECRET_BYTES:
                    found |= {tree.descend(secret, leaf, steps) for steps in range(tree.HEIGHT + 1)}
    return found


async def test_with_all_generations_and_todays_keys_only_what_lives_is_read(tmp_path: Path) -> None:
    home, backups = tmp_path / "home", tmp_path / "backups"
    home.mkdir()
    async with ClientSession() as http:
        with ServerProcess(home, KEYED, command=QUICK) as server:
            load = Load(server.url, http)
            await load.begin()
            sending = asyncio.create_task(load.keep_sending())
            generations = await generations_under_load(home, backups, sending)
            await load.alice.fetch(load.fetched, limit=500)
            await load.bob.fetch(load.fetched, limit=500)
            await load.alice.read(load.timed, 10**9)
            await asyncio.sleep(EXPIRY + 1.1)
            await next_run(server)
            await next_run(server)
            served = await served_to(load.alice, load)
            generations.append(await asyncio.to_thread(backed_up, home, backups))
            server.stop()
        assert served[load.keep]
        assert {len(served[each]) for each in (load.expiring, load.fetched, load.timed)} == {0}
        proven = conclave("verify-erasure", "--read-only", "--copies", backups, "--config", "conclave.toml", cwd=home)
        assert proven.returncode == 0, proven.stdout + proven.stderr
        expect_only_what_lives(home, backups, generations)
        for number, each in enumerate(generations):
            await expect_served(tmp_path / f"there{number}", home, each, load, served)


def backed_up(home: Path, backups: Path, *options: str | Path) -> Path:
    done = conclave("backup", backups, *options, "--config", "conclave.toml", cwd=home)
    assert done.returncode == 0, done.stderr
    return max(each for each in backups.iterdir() if (each / "manifest.json").exists())


async def generations_under_load(home: Path, backups: Path, sending: "asyncio.Task[None]") -> list[Path]:
    """Make all backups but the last while users talk; in the middle an operator purges. Then the users are silent."""
    found = []
    for number in range(GENERATIONS - 1):
        is_middle = number == GENERATIONS // 2
        options = ("--vault-copy", older_keys(backups).parent) if is_middle else ()
        found.append(await asyncio.to_thread(backed_up, home, backups, *options))
        if is_middle:
            await asyncio.to_thread(purge, home)
        assert not sending.done(), "users talk all the while"
    sending.cancel()
    with suppress(asyncio.CancelledError):
        await sending
    assert len(set(found)) == len(found)
    return found


def purge(home: Path) -> None:
    done = conclave(
        *("cleanup", "purge", "--group", "keep", "--before", "1s", "--yes", "--config", "conclave.toml"), cwd=home
    )
    assert done.returncode == 0, done.stderr


def older_keys(backups: Path) -> Path:
    """Where a thief has kept a former copy of the keys."""
    return backups.with_name("older") / "keys"


async def served_to(client: Client, load: Load) -> dict[str, list[tuple[int, bytes]]]:
    return {
        group: [(each.sequence_num, each.body) for each in await read_all(client, group)]
        for group in (load.keep, load.expiring, load.fetched, load.timed, load.slips)
    }


def expect_only_what_lives(home: Path, backups: Path, generations: list[Path]) -> None:
    """Whoever has every generation, and every key file as of today, reads what lives today and nothing else."""
    alive = set(stored_in(home / "conclave.db"))
    files = [home / "conclave.vault" / "keys", home / "copy" / "keys"]
    assert len({frozenset(ranges_of(each)) for each in files}) == 1
    found = [Inspection(each) for each in files]
    erased: Stored = {}
    read: set[Message] = set()
    for generation in generations:
        for message, stored in stored_in(generation / "database.db").items():
            if message in alive:
                keys = {key_of(each, message) for each in found}
                assert all(key and opens(key, message, stored) for key in keys), "what lives is read"
                read.add(message)
            else:
                assert not any(key_of(each, message) for each in found), "nothing leads to what is erased"
                erased[message] = stored
    assert read == alive
    assert len(erased) > len(generations), "much was erased meanwhile"
    expect_unreadable(erased, files)
    older = Inspection(older_keys(backups))
    known = next(each for each in sorted(erased) if key_of(older, each))
    tried = derivable_anywhere([older.path], known.number)
    assert any(opens(key, known, erased[known]) for key in tried), (
        "by a former copy it is: so it was looked for rightly"
    )


def expect_unreadable(erased: Mapping[Message, bytes], files: list[Path]) -> None:
    by_group: dict[bytes, list[Message]] = defaultdict(list)
    for message in erased:
        by_group[message.group_id].append(message)
    chance = random.Random(1)
    firsts = [chance.choice(each) for each in by_group.values()]
    chosen = chance.sample(firsts, min(TRIED // 2, len(firsts)))
    chosen += chance.sample(sorted(erased), min(TRIED - len(chosen), len(erased)))
    for message in chosen:
        keys = derivable_anywhere(files[:1], message.number)
        assert not any(opens(key, message, erased[message]) for key in keys)


async def expect_served(
    there: Path, home: Path, generation: Path, load: Load, served: Mapping[str, list[tuple[int, bytes]]]
) -> None:
    """Restore a generation elsewhere, with today's vault: what is served is alive today."""
    there.mkdir()
    (there / "conclave.toml").write_text(f'[vault]\ncopies = ["{home}/conclave.vault"]\n')
    done = conclave("restore", generation, "--config", "conclave.toml", cwd=there)
    assert done.returncode == 0, done.stderr
    has = stored_in(generation / "database.db")
    with ServerProcess(there, KEYED, command=QUICK) as server:
        async with ClientSession() as http:
            alice = Client(http, server.url, "", load.alice.user_id)
            await alice.login("alice")
            for _ in range(2):
                for group, expected in served.items():
                    wanted = [each for each in expected if Message(_id(group), each[0]) in has]
                    assert [(each.sequence_num, each.body) for each in await read_all(alice, group)] == wanted
                await next_run(server)
        server.stop()
    shutil.rmtree(there)


def _id(group: str) -> bytes:
    return bytes.fromhex(group.replace("-", ""))
