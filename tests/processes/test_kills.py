"""kill -9 at every failpoint and at random times, under load: what was promised still holds afterwards."""

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import ClientError, ClientSession, ClientTimeout

from conclave.keys.inspection import Inspection
from conclave.keys.tree import Range
from tests.support.client import PACKAGE, PASSWORD, Client, Message, RefusedError, encode, expect
from tests.support.failpoints import COPYING_POINTS, LOSING_POINTS, POINTS
from tests.support.forensics import StoreSearch
from tests.support.listening import listening
from tests.support.sample import some
from tests.support.server import PATIENCE, ServerProcess, conclave

EXPIRY = 2
SETTINGS = 'cleanup_interval = "1s"\n[cleanup]\nengine = "sql"\n'
KEYED = f'{SETTINGS}[vault]\ncopies = ["copy"]\n'
KEYED_POINTS = (
    *("keys.appended", "keys.synced", "keys.overwritten"),
    *("writer.before_commit", "writer.after_commit", "apply.after_commit", "erase.before_wal"),
    *(*LOSING_POINTS, *COPYING_POINTS),
)
"""Where the keys of messages and the messages may part."""

AT_ONCE = 8
"""Servers under test at the same time."""

TIMES = {
    **dict.fromkeys(("plan", "apply", "erase", "report"), range(1, 4)),
    **dict.fromkeys(("send", "commit", "create_group", "update_group", "join", "leave", "delete_group"), range(5, 9)),
    **dict.fromkeys(("accept", "key_package", "delete_account"), range(2, 5)),
    **dict.fromkeys(("timers", "read", "taken_back"), range(1, 4)),
    "writer": range(40, 80),
    "keys": range(4, 9),
    "run": range(1, 4),
    "vault": range(2, 6),
}
"""At which time a point is deadly, by the first part of its name: once the load has begun."""

QUICK = (
    "-c",
    "from conclave.auth import passwords as p; p.MEMORY_KIB = 8; from conclave.__main__ import main; main()",
)
"""The server with passwords that cost little: they are not what these tests are about."""

BROKEN = (ClientError, ConnectionError, TimeoutError)
UNHURRIED = ClientTimeout(total=PATIENCE)
"""The start of a server stops all scenarios, those that connect: on a busy machine for longer than 30 s together."""


@dataclass
class Load:
    """Users who talk, others who come and go, and what they were promised."""

    url: str
    http: ClientSession
    search: StoreSearch = field(default_factory=StoreSearch)
    made: int = 0
    kept: dict[int, int] = field(default_factory=dict)  # sequence number in the group that keeps: number of the body
    fleeting: dict[int, float] = field(default_factory=dict)  # number of the body: the second at which it was sent
    commits: list[bytes] = field(default_factory=list)  # of carol's invites, as far as they were made
    accepted: int = 0  # so many of them
    carol_is_in: bool | None = None  # None while a request may have changed it or not
    handed_out: list[tuple[Client, bytes]] = field(default_factory=list)  # key packages and whose they are
    deleted: list[Client] = field(default_factory=list)
    read: set[int] = field(default_factory=set)  # numbers of timed messages that alice has read
    heard: list[int] = field(default_factory=list)  # of those, whose end she has heard of
    taken: set[int] = field(default_factory=set)  # numbers of messages that were taken back
    heard_taken: set[int] = field(default_factory=set)  # of those, the ones of which alice has heard

    async def begin(self) -> None:
        self.alice = await Client.register(self.http, self.url, "alice")
        self.bob = await Client.register(self.http, self.url, "bob")
        self.carol = await Client.register(self.http, self.url, "carol")
        self.keep = await self.alice.create_group("keep")
        self.expiring = await self.alice.create_group("expiring", expiry=EXPIRY)
        self.fetched = await self.alice.create_group("fetched", expiry=0)
        self.timed = await self.alice.create_group("timed")
        self.slips = await self.alice.create_group("slips")
        for group in (self.keep, self.expiring, self.fetched, self.timed, self.slips):
            await self.bob.join(group)

    def body(self) -> tuple[int, bytes]:
        self.made += 1
        return self.made, self.search.body(self.made, 24 + self.made * 37 % 3000)

    def move_to(self, url: str) -> None:
        """Go on with a server that was started anew."""
        self.url = self.alice.url = self.bob.url = self.carol.url = url

    async def keep_sending(self) -> None:
        """Use every kind of request that writes, until the server is gone."""
        with contextlib.suppress(*BROKEN):
            turn = 0
            while True:
                turn += 1
                await self.talk()
                await self.use_a_group(f"passing{turn}")
                await self.bring_carol()
                await self.pass_by(f"passing{turn}")

    async def talk(self) -> None:
        number, body = self.body()
        self.kept[await self.alice.send(self.keep, body)] = number
        for group in (self.expiring, self.fetched):
            number, body = self.body()
            self.fleeting[number] = time.time()
            await self.bob.send(group, body)
        number, body = self.body()
        self.fleeting[number] = time.time()
        last = await self.bob.send(self.timed, body, EXPIRY)
        await self.alice.read(self.timed, last)
        self.read.add(last)
        number, body = self.body()
        slip = await self.bob.send(self.slips, body)
        await self.bob.take_back(self.slips, slip)
        self.fleeting[number] = time.time()
        self.taken.add(slip)
        await self.alice.fetch(self.fetched)
        await self.bob.fetch(self.fetched)
        await self.alice.post(
            f"/groups/{self.keep}/commit", commit_message=encode(b"commit"), group_info=encode(b"new info")
        )

    async def use_a_group(self, name: str) -> None:
        passing = await self.alice.create_group(name)
        await self.bob.join(passing)
        await self.bob.post(f"/groups/{passing}/external-join", commit_message=encode(b"commit"))
        await self.bob.send(passing)
        await self.alice.act("promote", passing, self.bob)
        await self.alice.act("demote", passing, self.bob)
        await self.bob.leave(passing)
        await self.alice.act("ban", passing, self.bob)
        await self.alice.act("unban", passing, self.bob)
        await self.alice.set_expiry(passing, 60)
        await self.alice.invite(passing, self.carol)
        await self.alice.post(f"/groups/{passing}/delete")

    async def bring_carol(self) -> None:
        """Have carol come by an invite, where she is to be found until the next turn."""
        was_in, self.carol_is_in = self.carol_is_in, None
        if was_in:
            await self.alice.act("remove", self.keep, self.carol)
        await self.carol.decline(await self.alice.invite(self.keep, self.carol))
        await self.alice.invite(self.keep, self.carol)
        await self.alice.post(f"/groups/{self.keep}/cancel-invite", invitee_id=self.carol.user_id)
        _, body = self.body()
        invite = await self.alice.invite(self.keep, self.carol, body)
        self.commits.append(body + b" commit")
        await self.carol.accept(invite)
        self.accepted, self.carol_is_in = len(self.commits), True
        [welcome] = (await self.carol.get("/welcomes"))["welcomes"]
        await self.carol.post(f"/welcomes/{welcome['welcome_id']}/accept")

    async def pass_by(self, username: str) -> None:
        """Have somebody come, leave a key package and a message, and delete the account."""
        passing = await Client.register(self.http, self.url, username)
        await passing.call("PATCH", "/me", json={"alias": username})
        await passing.upload(PACKAGE)
        await passing.post("/reset-account")
        await passing.upload(PACKAGE + username.encode())
        self.handed_out.append((passing, await self.alice.take(passing)))
        await passing.join(self.keep)
        await passing.send(self.keep, b"of somebody who will be gone")
        await passing.post("/change-password", current_password=PASSWORD, new_password=PASSWORD)
        await passing.login(username)
        await passing.post("/delete-account", password=PASSWORD)
        self.deleted.append(passing)


@contextlib.asynccontextmanager
async def hearing(load: Load) -> AsyncIterator[None]:
    """Have alice listen while the block lasts, if only until the server is gone."""
    stack = contextlib.AsyncExitStack()
    ear = await stack.enter_async_context(listening(load.alice))
    try:
        yield
    finally:
        with contextlib.suppress(*BROKEN):
            await stack.aclose()
        told = [(data["group_id"], data["sequence_num"]) for name, data in ear.waiting() if name == "message_redacted"]
        assert len(told) == len(set(told)), "a stream tells once"
        load.heard += [number for group, number in told if group == load.timed]
        load.heard_taken |= {number for group, number in told if group == load.slips}


async def check(folder: Path, load: Load, settings: str = SETTINGS) -> None:
    """Restart undisturbed, and see that all promises hold."""
    with ServerProcess(folder, settings, command=QUICK) as server:
        load.move_to(server.url)
        async with hearing(load):
            await check_server(server, load)
        server.stop()
    assert load.read <= set(load.heard), "whoever has read a message hears of its end"
    assert load.taken <= load.heard_taken, "all hear of what is taken back"
    assert load.search.left_of(load.fleeting, folder) == set(), "nothing erased can be read"
    with contextlib.closing(sqlite3.connect(folder / "conclave.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert connection.execute("SELECT count(*) FROM tombstones").fetchone()[0] == 0
        stored_in = connection.execute("SELECT DISTINCT group_name FROM messages LEFT JOIN groups USING (group_key)")
        names = {name for (name,) in stored_in if not str(name).startswith("passing")}
        assert names == {"keep"}, "what an undisturbed run leaves"
    if settings == KEYED:
        done = conclave("verify-erasure", "--json", "--config", "conclave.toml", cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        own, copy = (set(ranges_of(folder / name)) for name in ("conclave.vault/keys", "copy/keys"))
        assert own == copy, "copies forget as the server does"


def ranges_of(path: Path) -> Iterator[tuple[bytes, Range]]:
    """Yield the numbers whose keys follow from a key file."""
    found = Inspection(path)
    for group_id, block in found.blocks():
        yield from ((group_id, each) for each in found.ranges(group_id, block))


async def check_server(server: ServerProcess, load: Load) -> None:
    """See that all promises hold that clients see."""
    messages = await read_all(load.bob, load.keep)
    numbers = [message.sequence_num for message in messages]
    assert numbers == sorted(set(numbers)), "each once, in order"
    bodies = {message.sequence_num: message.body for message in messages}
    for number, made in load.kept.items():
        assert bodies[number] == load.search.body(made, len(bodies[number])), "nothing acknowledged is lost"
    await check_people(load, messages)
    now = time.time()
    for message in await load.bob.fetch(load.expiring):
        assert message.created_at + EXPIRY >= int(now) - 1, "nothing expired is served"
    assert await load.alice.send(load.keep) > max(load.kept, default=0), "numbers go on"
    await load.alice.fetch(load.fetched, limit=500)
    await load.bob.fetch(load.fetched, limit=500)
    await load.alice.read(load.timed, 10**9)
    for message in await load.bob.fetch(load.slips, limit=500):
        assert message.sequence_num not in load.taken, "what was taken back is not served"
        await load.bob.take_back(load.slips, message.sequence_num)
    await asyncio.sleep(EXPIRY + 1.1)
    await next_run(server)
    assert await load.alice.fetch(load.timed) == await load.bob.fetch(load.timed) == []
    assert await load.bob.fetch(load.expiring) == []
    assert await load.bob.fetch(load.fetched) == []


async def check_people(load: Load, messages: list[Message]) -> None:
    """See that who came is there, and who went is gone."""
    brought = Counter(message.body for message in messages)
    assert all(brought[commit] == 1 for commit in load.commits[: load.accepted]), "an accepted invite is a message"
    assert all(brought[commit] <= 1 for commit in load.commits), "and no more than one"
    if load.carol_is_in:
        assert (await load.alice.roles(load.keep))["carol"] == "member"
        assert (await load.carol.fetch(load.keep, limit=1))[0].sequence_num == 1
    gone = {client.user_id for client in load.deleted}
    assert gone.isdisjoint(message.sender_id for message in messages), "what they sent is hidden"
    for client, username in [(each, f"passing{number}") for number, each in enumerate(load.deleted, 1)][-3:]:
        client.url = load.url
        await expect(client.login(username), 401, 202)
        await expect(client.get("/me"), 401, 202)
    for client, _ in load.handed_out[-1:]:
        await expect(load.bob.take(client), 404, 300)


async def read_all(client: Client, group: str) -> list[Message]:
    messages = await client.fetch(group, limit=500)
    while more := await client.fetch(group, messages[-1].sequence_num if messages else 0, 500):
        messages += more
    return messages


async def next_run(server: ServerProcess) -> None:
    """Wait for the end of a run that has yet to begin."""
    began = time.time()
    deadline = time.monotonic() + PATIENCE
    while not any(
        event["event"] == "cleanup_run" and event["started_at"] > began and not event["error"]
        for event in server.events()
    ):
        assert time.monotonic() < deadline, server.events()[-5:]
        await asyncio.sleep(0.1)


async def die_at(point: str, folder: Path, settings: str = SETTINGS, *, later: int = 0) -> None:
    """Have a process killed at a point, kill the rest, and check.

    ``later``: by how many times the point is passed more often before. The slower the machine, the more a server does
    by itself before the load has begun.
    """
    folder.mkdir()
    checked = settings
    settings = SETTINGS.replace("sql", "spark") if point == "plan.read" else settings
    at = random.Random(point).choice(TIMES[point.partition(".")[0]]) + later
    env = {"CONCLAVE_FAILPOINT": f"{point}=kill@{at}"}
    async with ClientSession(timeout=UNHURRIED) as http:
        with ServerProcess(folder, settings, env, command=QUICK) as server:
            load = Load(server.url, http)
            try:
                await load.begin()
            except BROKEN:
                assert server.process.wait() == -signal.SIGKILL
                again = folder.with_name(f"{folder.name}+{at}")
                await die_at(point, again, checked, later=later + at)
                return
            async with hearing(load):
                sending = asyncio.create_task(load.keep_sending())
                deadline = time.monotonic() + PATIENCE
                while server.process.poll() is None and not has_ended(server, "cleanup_worker_ended"):
                    assert time.monotonic() < deadline, f"{point} was not reached"
                    await asyncio.sleep(0.05)
                server.process.kill()
                server.process.wait()
                await sending
        await check(folder, load, checked)


def has_ended(server: ServerProcess, name: str) -> bool:
    return any(event.get("event") == name for event in server.events())


async def die_at_random(seed: int, folder: Path) -> None:
    """Kill the server, the worker or both at a random time, and check."""
    folder.mkdir()
    chance = random.Random(seed)
    async with ClientSession(timeout=UNHURRIED) as http:
        with ServerProcess(folder, SETTINGS, command=QUICK) as server:
            load = Load(server.url, http)
            await load.begin()
            async with hearing(load):
                sending = asyncio.create_task(load.keep_sending())
                for _ in range(3):
                    await asyncio.sleep(chance.uniform(0.1, 1.5))
                    for pid in server.descendants() if chance.random() < 0.7 else ():
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                server.process.kill()
                server.process.wait()
                await sending
        await check(folder, load)


async def at_once(scenarios: Mapping[str, Awaitable[None]]) -> None:
    """Run scenarios, a few at the same time, and tell of all that fail."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def run(scenario: Awaitable[None]) -> None:
        async with slots:
            await scenario

    outcomes = await asyncio.gather(*map(run, scenarios.values()), return_exceptions=True)
    failed = {name: outcome for name, outcome in zip(scenarios, outcomes, strict=True) if outcome is not None}
    assert not failed


async def test_kill_9_at_every_failpoint_and_at_random_times_loses_nothing_and_revives_nothing(tmp_path: Path) -> None:
    """Each failpoint is reached, too: a scenario waits until it is."""
    points, seeds = some(POINTS, 6, "points of a server"), some(range(6), 1, "random times")
    scenarios = {point: die_at(point, tmp_path / point) for point in points}
    scenarios |= {f"random {seed}": die_at_random(seed, tmp_path / f"random{seed}") for seed in seeds}
    await at_once(scenarios)


async def test_kill_9_where_keys_and_messages_may_part_loses_no_message_and_leaves_no_key(tmp_path: Path) -> None:
    """What was acknowledged has its key, and what is erased has none: in the key file, in its copy, nowhere."""
    points = some(KEYED_POINTS, 3, "points of a server with keys")
    await at_once({point: die_at(point, tmp_path / point, KEYED) for point in points})


@pytest.mark.parametrize(("fault", "status"), [("full", 507), ("io", 503)])
async def test_a_disk_that_fails_at_commit_fails_the_whole_batch_and_the_server_goes_on(
    tmp_path: Path, fault: str, status: int
) -> None:
    for commit in range(25, 75, 10):  # on a busy machine a duty of the server may meet it in place of the sends
        (folder := tmp_path / str(commit)).mkdir()
        env = {"CONCLAVE_FAILPOINT": f"writer.before_commit={fault}@{commit}"}
        with ServerProcess(folder, SETTINGS, env) as server:
            if await _are_refused_whole(server, status):
                return
    raise AssertionError("no send has met the fault")


async def _are_refused_whole(server: ServerProcess, status: int) -> bool:
    """Send in batches, and tell whether one was refused."""
    async with ClientSession(timeout=UNHURRIED) as http:
        alice = await Client.register(http, server.url, "alice")
        group = await alice.create_group("g")
        outcomes: list[object] = []
        for _ in range(20):
            outcomes += await asyncio.gather(*(alice.send(group) for _ in range(8)), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, RefusedError)]
        acknowledged = [outcome for outcome in outcomes if isinstance(outcome, int)]
        assert {(each.status, each.code) for each in refused} <= {(status, 0)}
        assert len(refused) + len(acknowledged) == len(outcomes)
        assert await alice.numbers(group) == sorted(acknowledged), "no more, no less"
        assert await alice.send(group) == len(acknowledged) + 1, "a number that was not given is not lost"
    return bool(refused)
