"""While the clock is in doubt: what only the clock hides does not count as fetched, and what it ends has not ended."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from conclave import app_keys
from conclave.actions.messages import MAX_READS_IN_DOUBT
from conclave.archive.window import WindowResult
from conclave.config.cleanup import CleanupConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention.stretches import Stretch
from conclave.store.resources import fetch_gaps, members
from conclave.wire.formats import Format
from spark.environment import RunEnvironment
from spark.run import clean_up
from tests.conftest import Running, StartServer
from tests.support.archive import Mover
from tests.support.client import Client, expect
from tests.support.protobuf import ProtobufClient
from tests.support.server import until

HOUR, DAY = 3600, 86_400
WEEK = 7 * DAY
JUMP = 10 * DAY
"""The clock is wrong by so much: more than the week for which members may hold messages back."""

places = pytest.mark.parametrize("place", ["hot", "remembered", "archived", "partly archived"])


@pytest.fixture
def config(config: Config) -> Config:
    settings = RetentionConfig(fetch_hold_limit=WEEK)
    return replace(config, retention=settings, cleanup=CleanupConfig(engine="sql", disk_reserve=0))


@pytest.fixture
async def running(config: Config, start_server: StartServer) -> AsyncIterator[Running]:
    async with start_server(config) as server:
        yield server


async def watermarks(running: Running) -> dict[str, int]:
    await running.settle()
    return dict(await running.query("SELECT username, watermark FROM members JOIN users USING (user_id)"))


async def noticed(running: Running) -> None:
    """Have the guard look, as it does every 5 seconds."""
    await running.app[app_keys.CLOCK_WATCH].record()


async def set_right(running: Running, seconds: int = JUMP) -> None:
    """Set the clock back by ``seconds`` and accept it; a run follows."""
    running.clock.set_wrong(-seconds)
    await run(running, accept=True)
    await running.app[app_keys.CLOCK_WATCH].check()
    assert "clock" not in running.app[app_keys.HEALTH].faults


async def run(running: Running, *, accept: bool = False) -> int:
    """Do a run that leaves the archive alone, which takes Spark; return how many messages it has erased."""
    await running.settle()
    engine = RunEnvironment(running.config, running.clock, is_hot_only=True)
    report = await asyncio.to_thread(clean_up, engine, accept_clock=accept)
    assert report.error == ""
    return report.counts.total()


async def unread(
    running: Running, place: str = "hot", expiry: int = 0, kind: type[Client] = Client
) -> tuple[Client, Client, str]:
    """Alice and bob in a group with five messages of alice's that bob has not fetched, stored in ``place``."""
    alice, bob = [await kind.register(running.http, running.url, name) for name in ("alice", "bob")]
    group = await alice.create_group("friends", expiry=expiry)
    await bob.join(group)
    if place == "remembered":
        assert await bob.numbers(group) == []
    for _ in range(5):
        await alice.send(group)
    if place == "remembered":
        assert await alice.numbers(group) == [1, 2, 3, 4, 5]
    elif place != "hot":
        mover = Mover(running.config)
        mover.move(group, 5 if place == "archived" else 3)
        mover.drop_copies(group)
    return alice, bob, group


@places
@pytest.mark.parametrize("kind", [Client, ProtobufClient])
@pytest.mark.parametrize("guard_has_looked", [True, False])
async def test_unread_messages_that_only_the_clock_hides_do_not_count_as_fetched(
    running: Running, place: str, kind: type[Client], *, guard_has_looked: bool
) -> None:
    alice, bob, group = await unread(running, place, kind=kind)
    running.clock.set_wrong(JUMP)
    if guard_has_looked:
        await noticed(running)
    assert await alice.send(group) == 6
    for after, seen in ((0, [6]), (0, [6]), (6, []), (3, [6]), (99, [])):
        assert await bob.numbers(group, after) == seen
        assert (await watermarks(running))["bob"] == 0, after
    await bob.send(group)
    assert (await watermarks(running))["bob"] == 0, "a send says nothing of what came before"
    await set_right(running)
    assert await run(running) == 0
    for after, seen in ((7, []), (6, [7]), (99, [])):
        assert await bob.numbers(group, after) == seen, "a client may go on from where it is"
        assert (await watermarks(running))["bob"] == 0, after
    assert await run(running) == 0
    assert await bob.numbers(group) == [1, 2, 3, 4, 5, 6, 7]
    assert (await watermarks(running))["bob"] == 7
    assert await alice.numbers(group, 7) == []
    if "archived" not in place:
        assert await run(running) == 7, "all have all"


async def test_the_window_before_the_guard_looks_does_no_harm(running: Running) -> None:
    """The clock jumps and is back before anybody has looked: no page in between has counted for what it left out."""
    alice, bob, group = await unread(running)
    running.clock.set_wrong(JUMP)
    await alice.send(group)
    assert await bob.numbers(group) == [6]
    await running.settle()
    running.clock.set_wrong(-JUMP)
    assert await bob.numbers(group, 6) == []
    assert (await watermarks(running))["bob"] == 0
    await bob.send(group)
    assert await bob.numbers(group, 6) == [7]
    assert "clock" not in running.app[app_keys.HEALTH].faults
    assert (await watermarks(running))["bob"] == 0
    assert await bob.numbers(group) == [1, 2, 3, 4, 5, 6, 7]
    assert (await watermarks(running))["bob"] == 7


async def test_what_was_missed_is_fetched_in_pages_and_counts_as_far_as_these_go(running: Running) -> None:
    alice, bob, group = await unread(running)
    running.clock.set_wrong(JUMP)
    await alice.send(group)
    assert await bob.numbers(group) == [6]
    await set_right(running)
    for after, limit, counted in ((2, 1, 0), (0, 3, 3), (6, 9, 3), (1, 1, 3), (3, 1, 4), (99, 9, 4), (4, 9, 6)):
        await bob.fetch(group, after, limit)
        assert (await watermarks(running))["bob"] == counted, (after, limit)
    await alice.send(group)
    await bob.fetch(group, 7)
    assert (await watermarks(running))["bob"] == 7, "from then on the client's word counts again"


async def test_what_was_missed_and_has_expired_since_holds_nothing_back(running: Running) -> None:
    alice, bob, group = await unread(running)
    running.clock.set_wrong(JUMP)
    await alice.send(group)
    assert await bob.numbers(group) == [6]
    await set_right(running)
    await bob.fetch(group, 6)
    assert (await watermarks(running))["bob"] == 0
    running.clock.advance(WEEK + 1)
    assert await alice.send(group) == 7
    assert await bob.numbers(group, 6) == [7]
    assert (await watermarks(running))["bob"] == 7


async def test_few_pages_wait_until_it_is_noted_what_they_lack(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in memory meanwhile."""
    alice, bob, group = await unread(running)
    running.clock.set_wrong(JUMP)
    assert await alice.send(group) == 6
    store, go_on, waiting = running.app[app_keys.STORE], asyncio.Event(), 0
    write = store.write

    async def slowly(fn: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal waiting
        if fn is fetch_gaps.note_gap:
            waiting += 1
            await go_on.wait()
        return await write(fn, *args, **kwargs)

    monkeypatch.setattr(store, "write", slowly)
    fetching = [asyncio.create_task(bob.numbers(group)) for _ in range(2 * MAX_READS_IN_DOUBT)]
    await until(lambda: waiting == MAX_READS_IN_DOUBT)
    await asyncio.sleep(0.1)
    assert waiting == MAX_READS_IN_DOUBT
    go_on.set()
    assert await asyncio.gather(*fetching) == [[6]] * len(fetching)


async def test_a_true_claim_that_was_made_in_doubt_counts_once_the_clock_is_right(
    next_fetch: Config, start_server: StartServer
) -> None:
    """The next fetch confirms: bob has the page, and says so while the clock hides what was on it."""
    async with start_server(next_fetch) as running:
        alice, bob, group = await unread(running, "remembered")
        assert await bob.numbers(group) == [1, 2, 3, 4, 5]
        running.clock.set_wrong(JUMP)
        await alice.send(group)
        assert await bob.numbers(group, 5) == [6]
        assert (await watermarks(running))["bob"] == 0
        running.clock.set_wrong(-JUMP)
        assert await bob.numbers(group, 6) == []
        assert (await watermarks(running))["bob"] == 6


async def test_the_next_fetch_does_not_confirm_what_only_the_clock_has_hidden(
    next_fetch: Config, start_server: StartServer
) -> None:
    async with start_server(next_fetch) as running:
        alice, bob, group = await unread(running)
        running.clock.set_wrong(JUMP)
        await alice.send(group)
        for after in (0, 6):
            await bob.fetch(group, after)
            assert (await watermarks(running))["bob"] == 0
        await set_right(running)
        for after, limit, counted in ((6, 9, 0), (0, 3, 0), (3, 9, 3), (99, 9, 6)):
            await bob.fetch(group, after, limit)
            assert (await watermarks(running))["bob"] == counted, after


async def test_a_group_with_an_age_loses_nothing_that_is_kept_until_fetched_afterwards(running: Running) -> None:
    alice, bob, group = await unread(running, expiry=WEEK)
    running.clock.set_wrong(JUMP)
    await alice.send(group)
    assert await bob.numbers(group) == [6]
    await set_right(running)
    await alice.set_expiry(group, 0)
    await bob.fetch(group, 6)
    await alice.fetch(group, 6)
    assert await run(running) == 0
    assert await bob.numbers(group) == [1, 2, 3, 4, 5, 6]


async def test_joins_and_leaves_in_doubt_move_no_mark_past_what_only_the_clock_hides(running: Running) -> None:
    alice, bob, group = await unread(running)
    (carol,) = await running.users("carol")
    running.clock.set_wrong(JUMP)
    await alice.send(group)
    assert await bob.numbers(group) == [6]
    await carol.join(group)
    assert await carol.numbers(group) == [6]
    assert await carol.numbers(group, 6) == []
    assert (await running.query("SELECT floor_seq, gone_below, expired_before FROM groups")) == [(0, 0, 0)]
    await alice.act("promote", group, bob)
    await alice.leave(group)
    assert (await running.query("SELECT floor_seq FROM groups")) == [(0,)]
    await set_right(running)
    for each in (bob, carol):
        assert await each.numbers(group) == [1, 2, 3, 4, 5, 6]


async def test_self_destructing_messages_that_only_the_clock_calls_too_old_do_not_count_either(
    config: Config, start_server: StartServer
) -> None:
    retention = replace(config.retention, fetch_hold_limit=-1, self_destruct_max_age=WEEK)
    async with start_server(replace(config, retention=retention)) as running:
        alice, bob, group = await unread(running)
        await alice.send(group, seconds=60)
        assert await bob.numbers(group) == [1, 2, 3, 4, 5, 6]
        await alice.send(group, seconds=60)
        running.clock.set_wrong(JUMP)
        await alice.send(group)
        assert await bob.numbers(group, 6) == [8]
        await bob.fetch(group, 8)
        assert (await watermarks(running))["bob"] == 6
        await set_right(running)
        assert await bob.numbers(group, 6) == [7, 8]
        assert (await watermarks(running))["bob"] == 8


async def timed(running: Running, name: str = "bob") -> list[int]:
    """The self-destructing messages for which somebody has a timer."""
    await running.settle()
    rows = await running.query(
        "SELECT sequence_num FROM timers JOIN members USING (member_id) JOIN users USING (user_id)"
        " WHERE username = ? ORDER BY sequence_num",
        name,
    )
    return [number for (number,) in rows]


@pytest.mark.parametrize("read_when", ["in doubt", "set back", "accepted"])
@pytest.mark.parametrize("kind", [Client, ProtobufClient])
async def test_a_receipt_starts_no_timer_of_what_only_the_clock_hides(
    running: Running, read_when: str, kind: type[Client]
) -> None:
    alice, bob, group = await unread(running, expiry=WEEK, kind=kind)
    assert await bob.numbers(group) == [1, 2, 3, 4, 5]
    await alice.send(group, seconds=60)
    running.clock.set_wrong(JUMP)
    await alice.send(group, seconds=60)
    assert await bob.numbers(group, 5) == [7]
    if read_when == "in doubt":
        await bob.read(group, 7)
    if read_when == "set back":
        running.clock.set_wrong(-JUMP)
        await bob.read(group, 7)
        running.clock.set_wrong(JUMP)
    await set_right(running)
    await bob.read(group, 7)
    assert await timed(running) == []
    assert (await running.query("SELECT max(read_up_to) FROM members")) == [(5,)]
    running.clock.advance(61)
    assert await run(running) == 0
    assert await bob.numbers(group, 5) == [6, 7]
    await running.settle()
    await bob.read(group, 7)
    assert await timed(running) == [6, 7], "bob has the gap now"
    running.clock.advance(59)
    assert await bob.numbers(group, 5) == [6, 7]
    running.clock.advance(1)
    assert await bob.numbers(group, 5) == []
    assert await run(running) == 2


async def test_a_receipt_in_doubt_starts_the_timers_of_what_was_fetched_before(running: Running) -> None:
    """They run although the clock hides the messages: it is true that they were read."""
    alice, bob, group = await unread(running, expiry=WEEK)
    await alice.send(group, seconds=60)
    assert await bob.numbers(group) == [1, 2, 3, 4, 5, 6]
    await running.settle()
    await alice.send(group, seconds=60)
    running.clock.set_wrong(JUMP)
    await alice.send(group, seconds=60)
    await bob.read(group, 8)
    assert await timed(running) == [6]
    await set_right(running)
    await bob.read(group, 8)
    assert await timed(running) == [6, 7, 8], "no page has left anything out: bob's word counts"


async def test_a_receipt_in_doubt_starts_no_timer_of_what_was_too_old_before(
    config: Config, start_server: StartServer
) -> None:
    """What only a fast clock calls too old may begin once it is set right. This was too old by the right one."""
    retention = replace(config.retention, self_destruct_max_age=WEEK)
    async with start_server(replace(config, retention=retention)) as running:
        alice, bob, group = await unread(running, expiry=9 * WEEK)
        await alice.send(group, seconds=60)
        assert await bob.numbers(group) == [1, 2, 3, 4, 5, 6]
        running.clock.advance(WEEK + 1)
        await running.settle()
        await noticed(running)
        assert await bob.numbers(group) == [1, 2, 3, 4, 5]
        running.clock.set_wrong(JUMP)
        await bob.read(group, 6)
        await set_right(running)
        assert await bob.numbers(group) == [1, 2, 3, 4, 5]


async def test_a_receipt_beyond_a_gap_counts_as_far_as_the_gap_is_closed(running: Running) -> None:
    alice, bob, group = await unread(running, expiry=WEEK)
    for _ in range(3):
        await alice.send(group, seconds=60)
    running.clock.set_wrong(JUMP)
    await alice.send(group)
    assert await bob.numbers(group) == [9]
    await set_right(running)
    for after, limit, found in ((0, 6, [6]), (9, 9, [6]), (6, 1, [6, 7]), (7, 9, [6, 7, 8])):
        await bob.fetch(group, after, limit)
        await running.settle()
        await bob.read(group, 9)
        assert await timed(running) == found


async def test_a_receipt_counts_beyond_what_was_missed_and_has_expired_since(running: Running) -> None:
    alice, bob, group = await unread(running, expiry=WEEK)
    running.clock.set_wrong(JUMP)
    await alice.send(group)
    assert await bob.numbers(group) == [6]
    await set_right(running)
    running.clock.advance(WEEK + 1)
    await alice.send(group, seconds=60)
    assert await bob.numbers(group, 6) == [7]
    await bob.read(group, 7)
    assert await timed(running) == [7]


async def test_a_page_that_says_only_that_a_message_is_there_does_not_count_for_it_either(
    config: Config, start_server: StartServer
) -> None:
    """Only the clock calls it too old: the reader has not seen it, and the next fetch goes on beyond it."""
    retention = replace(config.retention, fetch_hold_limit=-1, self_destruct_max_age=WEEK)
    async with start_server(replace(config, retention=retention)) as running:
        alice, bob, group = await unread(running)
        assert await bob.numbers(group) == [1, 2, 3, 4, 5]
        await alice.send(group, seconds=60)
        running.clock.set_wrong(JUMP)
        await alice.send(group)
        page = await bob.get(f"/groups/{group}/messages", after=5, include_redacted="true")
        assert [(each["sequence_num"], each["redacted"]) for each in page["messages"]] == [(6, True), (7, False)]
        await set_right(running)
        await bob.fetch(group, 7)
        assert (await watermarks(running))["bob"] == 5
        assert await bob.numbers(group, 5) == [6, 7]
        assert (await watermarks(running))["bob"] == 7


async def test_a_page_that_is_noted_late_counts_although_another_one_missed_what_is_on_it(running: Running) -> None:
    """It had left to another device before the clock jumped."""
    alice, bob, group = await unread(running)
    (member_id,) = (await running.query("SELECT member_id FROM members ORDER BY member_id DESC LIMIT 1"))[0]
    running.clock.set_wrong(JUMP)
    await alice.send(group)
    assert await bob.numbers(group) == [6]
    for up_to in (3, 5):
        await running.app[app_keys.STORE].write_joint(members.confirm_fetched, (member_id, up_to))
        assert (await watermarks(running))["bob"] == up_to
        if up_to == 3:
            running.clock.set_wrong(-JUMP)
            assert await bob.numbers(group, 6) == []
            assert (await watermarks(running))["bob"] == 3, "the other two are missed"
    assert await bob.numbers(group, 6) == []
    assert (await watermarks(running))["bob"] == 6
    assert await running.query("SELECT missed_from, missed_to FROM members") == [(0, 0), (0, 0)]


async def test_a_page_that_waits_for_the_archive_while_the_clock_jumps_does_not_count_for_what_it_drops(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jump comes between two looks of one page, and is over when it leaves."""
    _, bob, group = await unread(running, "archived")
    reader = running.app[app_keys.ARCHIVE]
    read = reader.read

    async def read_late(stretch: Stretch, limit: int, taken: int = 0) -> WindowResult:
        found = await read(stretch, limit, taken)
        running.clock.set_wrong(JUMP)
        return found

    monkeypatch.setattr(reader, "read", read_late)
    assert await bob.numbers(group) == []
    running.clock.set_wrong(-JUMP)
    assert (await watermarks(running))["bob"] == 0


async def test_a_restart_does_not_forget_what_was_missed(config: Config, start_server: StartServer) -> None:
    async with start_server(config) as running:
        alice, bob, group = await unread(running)
        running.clock.set_wrong(JUMP)
        await alice.send(group)
        assert await bob.numbers(group) == [6]
    running.clock.set_wrong(-JUMP)
    running.clock.boot_id = "restarted"
    async with start_server(config) as running:
        bob = Client(running.http, running.url, bob.token, bob.user_id)
        await bob.fetch(group, 6)
        assert (await watermarks(running))["bob"] == 0
        assert await bob.numbers(group) == [1, 2, 3, 4, 5, 6]
        assert (await watermarks(running))["bob"] == 6


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_pages_come_from_memory_again_once_the_clock_is_right(running: Running, *, is_noticed: bool) -> None:
    """What was read while the clock was ahead lacks messages: it must not stay there instead of them."""
    _, bob, group = await unread(running, expiry=WEEK)
    asked = UUID(group).bytes, UUID(bob.user_id).bytes, 0, 100, Format.JSON

    async def come_from_memory(seen: list[int]) -> None:
        for _ in range(2):
            assert await bob.numbers(group) == seen
            await running.settle()
        found = running.app[app_keys.FETCHING].read_cached(*asked)
        assert found is not None
        assert (len(found.pieces), found.needs_confirmation) == (len(seen), False)

    await come_from_memory([1, 2, 3, 4, 5])
    running.clock.set_wrong(JUMP)
    await come_from_memory([])
    if is_noticed:
        await noticed(running)
        await set_right(running)
    else:
        running.clock.set_wrong(-JUMP)
    await come_from_memory([1, 2, 3, 4, 5])


async def heads(running: Running, *requests: bytes) -> list[dict[str, str]]:
    """Send requests on a connection, one after the other; return the head of each answer, names in lower case."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    found = []
    try:
        for each in requests:
            writer.write(each)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            fields = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:] if line)}
            found.append({"status": lines[0].split()[1], **fields})
            if not each.startswith(b"HEAD"):
                await reader.readexactly(int(fields.get("content-length", "0")))
    finally:
        writer.close()
    return found


@pytest.mark.parametrize("guard_has_looked", [True, False])
async def test_no_answer_tells_the_time_while_the_clock_is_in_doubt(
    running: Running, *, guard_has_looked: bool
) -> None:
    alice, group = await running.user("alice"), ""
    group = await alice.create_group("friends")
    for _ in range(3):
        await alice.send(group, bytes(200_000))
    path, token = f"/api/v1/groups/{group}/messages", f"Authorization: Bearer {alice.token}\r\n"

    def ask(first: str, *more: str, token: str = token, body: str = "") -> bytes:
        lines = [f"{first} HTTP/1.1", "Host: x", *more, *([f"Content-Length: {len(body)}"] if body else [])]
        return ("\r\n".join([*lines, token]) + "\r\n" + body).encode("ascii")

    kinds = {
        "before aiohttp": [ask(f"GET {path}?after=3")] * 3,
        "an error of it": [ask(f"GET {path.replace(group, str(uuid4()))}?after=3")] * 3,
        "of a send": [ask(f"POST {path}", "Content-Type: application/json", body='{"mls_message": "aGk="}')] * 3,
        "a send that is refused": [ask(f"POST {path}", "Content-Type: application/json", body='{"x": "aGk="}')] * 3,
        "a large page": [ask(f"GET {path}?after=0")],
        "the last of a connection": [ask(f"GET {path}?after=3", "Connection: close")],
        "a head": [ask(f"HEAD {path}?after=3")],
        "of any other path": [ask("GET /api/v1/me")],
        "of no path": [ask("GET /api/v1/nothing")],
        "without a token": [ask("GET /api/v1/me", token="")],
        "of health": [ask("GET /healthz")],
        "a file": [ask("GET /api/v1/docs")],
        "a stream": [ask("GET /api/v1/events")],
        "to what is not HTTP": [b"nonsense\r\n\r\n"],
        "to an Expect that nobody knows": [ask("GET /api/v1/me", "Expect: gold")],
    }
    for kind, requests in kinds.items():
        for each in await heads(running, *requests):
            assert ("date" in each, "x-clock-in-doubt" in each) == (True, False), kind
    running.clock.set_wrong(JUMP)
    if guard_has_looked:
        await noticed(running)
    for kind, requests in kinds.items():
        for each in await heads(running, *requests):
            assert ("date" in each, each.get("x-clock-in-doubt")) == (False, "true"), kind
    await set_right(running)
    for each in await heads(running, *kinds["before aiohttp"], *kinds["of any other path"]):
        assert "date" in each


@pytest.mark.parametrize("kind", [Client, ProtobufClient])
@pytest.mark.parametrize("guard_has_looked", [True, False])
async def test_sessions_that_only_the_clock_ends_have_to_wait(
    running: Running, kind: type[Client], *, guard_has_looked: bool
) -> None:
    alice, bob, group = await unread(running, kind=kind)
    carol, dora = [await kind.register(running.http, running.url, name) for name in ("carol", "dora")]
    running.clock.advance(running.config.token_ttl_seconds)  # they have not been used since
    await expect(dora.get("/me"), 401, 202)
    for each, name in ((alice, "alice"), (bob, "bob"), (carol, "carol")):
        await each.login(name)
    await carol.post("/logout")
    ahead = running.config.token_ttl_seconds + 1
    running.clock.set_wrong(ahead)
    if guard_has_looked:
        await noticed(running)
    before = await running.query("SELECT session_id FROM sessions")
    for _ in range(3):
        refused = await expect(alice.get("/me"), 503, 0)
        assert "clock" in refused["message"]
        await expect(bob.numbers(group), 503, 0)
        await expect(bob.send(group), 503, 0)
        await expect(carol.get("/me"), 401, 202)
        await expect(dora.get("/me"), 401, 202)
    headers = {running.config.auth_header: f"Bearer {alice.token}"}
    async with running.http.get(f"{running.url}/api/v1/events", headers=headers) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "60")
    emma = await kind.register(running.http, running.url, "emma")
    await emma.get("/me")
    await running.app[app_keys.CLOCK_WATCH].record()
    report = await asyncio.to_thread(clean_up, RunEnvironment(running.config, running.clock))
    assert "ClockWrongError" in report.error
    assert {*before} <= {*await running.query("SELECT session_id FROM sessions")}, "nothing was removed"
    await set_right(running, ahead)
    for each in (alice, bob, emma):
        await each.get("/me")
    await expect(carol.get("/me"), 401, 202)


async def test_a_session_that_ends_while_the_clock_is_in_doubt_has_ended(running: Running) -> None:
    alice = await running.user("alice")
    running.clock.set_wrong(JUMP)
    await alice.get("/me")
    await alice.post("/logout")
    await expect(alice.get("/me"), 401, 202)


async def test_a_clock_that_is_far_behind_shows_again_what_is_not_erased_yet_and_nothing_else(running: Running) -> None:
    """It counts as it is: nobody knows which clock was right. What was erased or settled does not return."""
    alice = await running.user("alice")
    gone, settled, group = [await alice.create_group(name, expiry=HOUR) for name in ("gone", "settled", "kept")]
    for each in (gone, settled):
        await alice.send(each)
    running.clock.advance(HOUR + 1)
    await alice.set_expiry(settled, -1)
    assert await run(running) == 2
    await alice.send(group)
    running.clock.advance(HOUR + 1)
    assert await alice.numbers(group) == []
    running.clock.set_wrong(-2 * HOUR)
    assert await alice.numbers(group) == [1], "shown again"
    for each in (gone, settled):
        assert await alice.numbers(each) == []
    await noticed(running)
    assert "set back by 7200 seconds" in running.app[app_keys.HEALTH].faults["clock"]
    report = await asyncio.to_thread(clean_up, RunEnvironment(running.config, running.clock))
    assert "ClockWrongError" in report.error
    await expect(alice.set_expiry(group, -1), 503, 0)
    assert (await heads(running, b"GET /healthz HTTP/1.1\r\n\r\n"))[0].get("date") is None
    running.clock.set_wrong(2 * HOUR)
    assert await alice.numbers(group) == [], "hidden again, before anybody accepts anything"
    assert await run(running, accept=True) == 1


async def test_a_clock_that_is_far_behind_ends_no_session_and_counts_no_less_as_fetched(running: Running) -> None:
    alice, bob, group = await unread(running)
    running.clock.advance(DAY)
    await noticed(running)
    running.clock.set_wrong(-DAY)
    await alice.send(group)
    assert await bob.numbers(group) == [1, 2, 3, 4, 5, 6]
    assert (await watermarks(running))["bob"] == 6
