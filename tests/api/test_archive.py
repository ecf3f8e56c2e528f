"""Messages over HTTP when the older ones are in the archive: nothing that a client can notice."""

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import structlog
from deltalake import QueryBuilder

from conclave import app_keys
from conclave.archive import pages, reader as archive, window
from conclave.archive.layout import DAY, KEEP_WIDTH
from conclave.archive.scan import CONCURRENT_READS, batches as batches_of
from conclave.config.settings import Config
from conclave.retention.policy import KEEP
from conclave.retention.stretches import Stretch
from conclave.server import duties
from conclave.store.archive.moves import ArchiveState
from conclave.store.resources import messages
from tests.conftest import Running, StartServer
from tests.support.archive import Mover
from tests.support.client import Client, Message, expect
from tests.support.damage import flip, flip_at
from tests.support.server import PATIENCE, until


@pytest.fixture
def mover(running: Running) -> Mover:
    return Mover(running.config)


async def filled(running: Running, count: int) -> tuple[Client, str]:
    """A user, and a group with ``count`` messages from that user: the n-th is b"n"."""
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    await send_more(alice, group, 1, count)
    return alice, group


async def filled_by_sizes(running: Running, monkeypatch: pytest.MonkeyPatch, *sizes: int) -> tuple[Client, str]:
    """A user, and a group with messages of these sizes from that user, where a page has at most 1,000 bytes."""
    monkeypatch.setattr(messages, "PAGE_BYTES", 1000)
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    for size in sizes:
        await alice.send(group, bytes(size))
    return alice, group


async def send_more(client: Client, group: str, first: int, last: int) -> None:
    for n in range(first, last + 1):
        assert await client.send(group, b"%d" % n) == n


async def watermark(running: Running, username: str) -> int:
    await running.settle()
    rows = await running.query("SELECT watermark FROM members JOIN users USING (user_id) WHERE username = ?", username)
    return int(rows[0][0])


def expected(first: int, last: int) -> list[tuple[int, bytes]]:
    return [(n, b"%d" % n) for n in range(first, last + 1)]


def short(page: list[Message]) -> list[tuple[int, bytes]]:
    return [(message.sequence_num, message.body) for message in page]


@pytest.mark.parametrize("step", ["appended", "switched", "copies gone", "rewritten"])
async def test_pages_are_the_same_whatever_the_border(running: Running, mover: Mover, step: str) -> None:
    alice, group = await filled(running, 30)
    before = await alice.fetch(group)
    mover.move(group, 12)
    rows = mover.append(group, 20)
    if step != "appended":
        mover.switch(group, 20, rows)
    if step in ("copies gone", "rewritten"):
        mover.drop_copies(group)
    if step == "rewritten":
        mover.rewrite()
    for limit in (1, 2, 8, 9, 100):
        for after in (0, 1, 10, 11, 12, 13, 19, 20, 21, 29, 30, 31):
            assert await alice.fetch(group, after, limit) == before[after : after + limit], (after, limit)


async def test_the_watermark_follows_what_came_from_the_archive(running: Running, mover: Mover) -> None:
    _, group = await filled(running, 20)
    bob = await running.user("bob")
    await bob.join(group)
    mover.move(group, 10)
    assert short(await bob.fetch(group, 0, 7)) == expected(1, 7)
    assert await watermark(running, "bob") == 7
    assert short(await bob.fetch(group, 7, 6)) == expected(8, 13)
    assert await watermark(running, "bob") == 13
    await bob.fetch(group, 0, 2)
    assert await watermark(running, "bob") == 13
    assert await bob.fetch(group, 99) == []
    assert await watermark(running, "bob") == 20


def before_a_read(
    running: Running, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]
) -> list[Callable[[], None]]:
    """Have ``happens`` take place once, while a page waits for the archive; return what has not taken place yet."""
    reader = running.app[app_keys.ARCHIVE]
    read, once = reader.read, [happens]

    async def read_late(stretch: Stretch, limit: int, taken: int = 0) -> window.WindowResult:
        if once:
            once.pop()()
        return await read(stretch, limit, taken)

    monkeypatch.setattr(reader, "read", read_late)
    return once


@pytest.mark.parametrize("limit", [5, 100])
async def test_no_page_misses_what_was_restored_and_left_the_archive_while_it_is_looked_for(
    running: Running, mover: Mover, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """The one who fetches would never ask for it again, and in delete-after-fetch it would be erased."""
    alice, group = await filled(running, 20)
    before = await alice.fetch(group)
    bob = await running.user("bob")
    await bob.join(group)
    mover.move(group, 10)
    waiting = before_a_read(running, monkeypatch, lambda: mover.restore(group))
    assert await bob.fetch(group, 0, limit) == before[:limit]
    assert not waiting
    assert await watermark(running, "bob") == min(limit, 20)
    assert await bob.fetch(group) == before


async def test_a_page_of_which_all_is_hidden_confirms_no_more_than_its_after(running: Running, mover: Mover) -> None:
    _, group = await filled(running, 10)
    bob = await running.user("bob")
    await bob.join(group)
    mover.move(group, 10)
    mover.execute("UPDATE groups SET expired_before = ?", running.clock.now() + 1)
    assert await bob.fetch(group, 4) == []
    assert await watermark(running, "bob") == 4


async def test_marks_hide_what_is_in_the_archive(running: Running, mover: Mover) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    now = running.clock.now()
    for n in range(1, 21):
        mover.send(group, alice.user_id, b"%d" % n, now - (20 - n) * DAY)
    mover.move(group, 15)
    mover.execute("UPDATE groups SET gone_below = 5")
    assert short(await alice.fetch(group)) == expected(6, 20)
    mover.execute("UPDATE groups SET expired_before = ?", now - 10 * DAY)
    assert short(await alice.fetch(group)) == expected(10, 20)
    await alice.set_expiry(group, 8 * DAY)
    assert short(await alice.fetch(group)) == expected(12, 20)
    running.clock.advance(1)
    assert short(await alice.fetch(group)) == expected(13, 20)
    assert short(await alice.fetch(group, 0, 4)) == expected(13, 16), "what is hidden takes no room"


async def test_what_a_deleted_account_sent_is_hidden_but_for_commits(running: Running, mover: Mover) -> None:
    alice, group = await filled(running, 5)
    bob = await running.user("bob")
    await bob.join(group)
    await send_more(bob, group, 6, 300)
    mover.send(group, bob.user_id, b"301", running.clock.now(), is_commit=True)
    await send_more(alice, group, 302, 303)
    mover.move(group, 302)
    await bob.post("/delete-account", password="correct horse")
    assert short(await alice.fetch(group, 0, 4)) == expected(1, 4)
    assert short(await alice.fetch(group, 3, 4)) == expected(4, 5) + expected(301, 302)
    mover.delete(f"sender_id = X'{bob.user_id.replace('-', '')}' AND NOT is_commit")
    assert short(await alice.fetch(group)) == expected(1, 5) + expected(301, 303)


async def test_a_deleted_group_is_gone_and_its_key_is_not_another_groups(running: Running, mover: Mover) -> None:
    alice, group = await filled(running, 5)
    mover.move(group, 5)
    await alice.post(f"/groups/{group}/delete")
    await expect(alice.fetch(group), 401, 400)
    other = await alice.create_group("others")
    assert await alice.fetch(other) == []


async def test_a_page_over_both_tiers_is_bounded_in_bytes(
    running: Running, mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, group = await filled_by_sizes(running, monkeypatch, 400, 500, 200, 5000, 1, 600, 300, 101, 900, 2000)
    for border in range(11):
        mover.move(group, border)
        for after, found in enumerate(([1, 2], [2, 3], [3], [4], [5, 6, 7], [6, 7], [7, 8], [8], [9], [10], [])):
            assert await alice.numbers(group, after) == found, (border, after)


async def test_no_page_passes_over_what_had_no_room_after_its_archived_messages(
    running: Running, mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one who fetches would never ask for it again, and in delete-after-fetch it would be erased."""
    alice, group = await filled_by_sizes(running, monkeypatch, 400, 500, 200, 50, 50, 50)
    mover.move(group, 2)
    for limit in (3, 4, 5):
        assert [each.sequence_num for each in await alice.fetch(group, 0, limit)] == [1, 2], limit
        assert [each.sequence_num for each in await alice.fetch(group, 2, limit)] == [3, 4, 5, 6][:limit]


async def test_a_page_ends_before_what_has_moved_meanwhile_and_has_no_room(
    running: Running, mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, group = await filled_by_sizes(running, monkeypatch, 400, 500, 200)
    mover.move(group, 2)
    waiting = before_a_read(running, monkeypatch, lambda: mover.move(group, 3))
    assert await alice.numbers(group, 0) == [1, 2]
    assert not waiting
    assert await alice.numbers(group, 2) == [3]


async def test_a_sparse_group_opens_only_the_parts_that_its_page_lies_in(running: Running, mover: Mover) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    start = running.clock.now() // KEEP_WIDTH * KEEP_WIDTH - 20 * KEEP_WIDTH
    for n in range(1, 61):
        mover.send(group, alice.user_id, b"%d" % n, start + (n - 1) * 10 * DAY)
    mover.move(group, 60)
    files = mover.files()
    assert len(files) == 20
    needed = [start + part * KEEP_WIDTH for part in (3, 4, 5)]
    for span, paths in files.items():
        if span not in needed:
            for path in paths:
                path.unlink()
    assert short(await alice.fetch(group, 10, 8)) == expected(11, 18)
    await expect(alice.fetch(group, 10, 9), 500, 0)


async def test_retention_classes_that_overlap_are_one_sequence(running: Running, mover: Mover) -> None:
    alice, group = await filled(running, 30)
    for last, lifetime in ((5, KEEP), (9, 90 * DAY), (17, KEEP), (20, 7 * DAY), (25, 90 * DAY)):
        mover.move(group, last, lifetime)
    for limit in (1, 3, 100):
        for after in range(31):
            assert short(await alice.fetch(group, after, limit)) == expected(after + 1, min(30, after + limit))


async def test_gaps_are_no_ends(running: Running, mover: Mover) -> None:
    alice, group = await filled(running, 60)
    mover.move(group, 50)
    mover.delete("sequence_num > 3 AND sequence_num < 48")
    assert short(await alice.fetch(group, 0, 5)) == expected(1, 3) + expected(48, 49)
    mover.execute("DELETE FROM archive_parts")
    assert short(await alice.fetch(group)) == expected(51, 60)


async def test_copies_at_or_below_the_border_are_not_served(running: Running, mover: Mover) -> None:
    alice, group = await filled(running, 10)
    mover.switch(group, 6, mover.append(group, 6))
    mover.execute("DELETE FROM archive_parts WHERE first_seq <= 6")
    assert short(await alice.fetch(group)) == expected(7, 10)


async def test_files_that_were_replaced_are_not_missed(running: Running, mover: Mover) -> None:
    alice, group = await filled(running, 10)
    mover.move(group, 8)
    assert short(await alice.fetch(group)) == expected(1, 10)
    for _ in range(3):
        mover.rewrite()  # without a word to the hot store
        assert short(await alice.fetch(group)) == expected(1, 10)
    mover.forget_log()
    mover.rewrite()
    assert short(await alice.fetch(group)) == expected(1, 10)


async def test_files_that_vanish_between_planning_and_reading_are_not_missed(
    running: Running, mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, group = await filled(running, 10)
    mover.move(group, 8)
    batches, vanished = batches_of, 0

    def late(query: QueryBuilder, sql: str) -> Iterator[Any]:
        nonlocal vanished
        if vanished < 2:
            vanished += 1
            mover.rewrite()
        return batches(query, sql)

    monkeypatch.setattr(window, "batches", late)
    assert short(await alice.fetch(group)) == expected(1, 10)
    assert vanished == 2


async def test_a_handle_that_is_behind_is_refreshed(running: Running, mover: Mover) -> None:
    alice, group = await filled(running, 20)
    for last in range(1, 15):
        mover.move(group, last)
        if last == 10:
            mover.forget_log()
        assert short(await alice.fetch(group)) == expected(1, 20)


async def test_an_archive_that_cannot_be_read_is_a_fault_until_it_can_be(running: Running, mover: Mover) -> None:
    alice, group = await filled(running, 10)
    mover.move(group, 8)
    assert len(await alice.fetch(group)) == 10
    mover.hide()
    with structlog.testing.capture_logs() as lines:
        await expect(alice.fetch(group), 500, 0)
    assert [line["log_level"] for line in lines if line["event"] == "request_failed"] == ["error"]
    assert "archive" in running.app[app_keys.HEALTH].faults
    assert short(await alice.fetch(group, 8)) == expected(9, 10), "what is in the hot store is served"
    assert "archive" in running.app[app_keys.HEALTH].faults
    assert not mover.folder.exists()
    mover.unhide()
    assert len(await alice.fetch(group)) == 10
    assert running.app[app_keys.HEALTH].faults == {}


async def test_a_message_with_a_flipped_bit_is_never_served_and_health_tells_until_it_is_right_again(
    running: Running, mover: Mover
) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    bodies = [os.urandom(300) for _ in range(10)]
    for body in bodies:
        await alice.send(group, body)
    mover.move(group, 8)
    path = flip(mover.folder, stored := mover.at_rest[4])
    await expect(alice.fetch(group), 500, 0)
    faults = running.app[app_keys.HEALTH]
    assert f"message 5 of the group {group} is damaged: see docs/" in faults.faults["archive"]
    page = await alice.fetch(group, 5)
    assert [message.body for message in page] == bodies[5:], "pages without it are served"
    assert [message.body for message in await alice.fetch(group, 0, 4)] == bodies[:4]
    with pytest.raises(archive.ArchiveError):
        await running.app[app_keys.ARCHIVE].warm_up()
    assert "archive" in faults.faults, "other reads do not make it right"
    flip_at(path, path.read_bytes().index(stored[:100]) + len(stored) // 2)
    await running.app[app_keys.ARCHIVE].warm_up()
    assert faults.faults == {}
    assert [message.body for message in await alice.fetch(group)] == bodies


async def test_a_damaged_message_is_no_fault_any_more_once_it_was_erased(running: Running, mover: Mover) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    bodies = [os.urandom(300) for _ in range(10)]
    for body in bodies:
        await alice.send(group, body)
    mover.move(group, 8)
    flip(mover.folder, mover.at_rest[1])
    await expect(alice.fetch(group), 500, 0)
    mover.execute("UPDATE groups SET gone_below = 3")
    mover.delete("sequence_num <= 3")
    mover.execute("UPDATE archive_state SET version = ?", mover.version())
    await running.app[app_keys.ARCHIVE].warm_up()
    assert running.app[app_keys.HEALTH].faults == {}
    assert [message.body for message in await alice.fetch(group)] == bodies[3:]


async def test_an_older_archive_than_the_store_knows_of_is_not_served(running: Running, mover: Mover) -> None:
    alice, group = await filled(running, 10)
    mover.move(group, 8)
    mover.execute("UPDATE archive_state SET version = version + 1")
    await expect(alice.fetch(group), 500, 0)
    assert "is older than the database" in running.app[app_keys.HEALTH].faults["archive"]


async def test_an_archive_that_goes_is_told_before_anybody_reads_there(
    running: Running, mover: Mover, start_server: StartServer, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, group = await filled(running, 10)
    mover.move(group, 8)
    await running.server.close()
    monkeypatch.setattr(duties, "ARCHIVE_RETRY_SECONDS", 0.05)
    folder = config.archive_path
    async with start_server(replace(config)) as again:
        alice.http, alice.url = again.http, again.url
        health = again.app[app_keys.HEALTH]
        assert short(await alice.fetch(group)) == expected(1, 10)
        folder.rename(folder.with_name("away"))
        await until(lambda: health.faults.get("archive") == f"{folder}: there is no table; is its disk mounted?")
        folder.with_name("away").rename(folder)
        await until(lambda: not health.faults)


async def test_an_archive_that_is_newer_than_its_database_leaves_nothing_out_in_silence(
    running: Running, mover: Mover, start_server: StartServer, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what the database believes to be archived the table has lost some, in a run that it does not know of."""
    alice, group = await filled(running, 10)
    mover.move(group, 8)
    mover.begin_turn(1)
    assert short(await alice.fetch(group)) == expected(1, 10)
    mover.begin_turn(2)
    mover.delete("sequence_num < 5")
    mover.execute("UPDATE archive_state SET turn = 1, former_turn = 0")
    await running.server.close()
    monkeypatch.setattr(duties, "ARCHIVE_RETRY_SECONDS", 0.05)
    async with start_server(replace(config)) as again:
        alice.http, alice.url = again.http, again.url
        faults = again.app[app_keys.HEALTH]
        await until(lambda: "is newer than the database" in faults.faults.get("archive", ""))
        await expect(alice.fetch(group), 500, 0)
        assert short(await alice.fetch(group, 8)) == expected(9, 10), "what is in the hot store is served"
        assert "is newer than the database" in faults.faults["archive"]
        mover.execute("UPDATE archive_state SET turn = 2, former_turn = 1")
        await until(lambda: not faults.faults)
        assert short(await alice.fetch(group)) == expected(5, 10)


async def test_a_run_that_begins_meanwhile_is_no_mismatch(
    running: Running, mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, group = await filled(running, 20)
    mover.move(group, 8)
    known, turn = archive.Archive._known, 0

    def late(reader: archive.Archive) -> ArchiveState:
        nonlocal turn
        if turn < 2:
            turn += 1
            mover.begin_turn(turn)
            mover.rewrite()
        return known(reader)

    monkeypatch.setattr(archive.Archive, "_known", late)
    assert short(await alice.fetch(group)) == expected(1, 20)
    assert turn == 2
    assert running.app[app_keys.HEALTH].faults == {}


@pytest.mark.parametrize("damage", [b"", b"\0" * 200, b'{"commitInfo":{"oper'], ids=["empty", "zeros", "half"])
async def test_a_version_that_a_power_failure_left_unreadable_does_not_keep_from_what_is_known(
    running: Running, mover: Mover, damage: bytes
) -> None:
    alice, group = await filled(running, 20)
    mover.move(group, 8)
    mover.append(group, 12)
    (mover.folder / "_delta_log" / f"{mover.version():020d}.json").write_bytes(damage)
    assert short(await alice.fetch(group)) == expected(1, 20)
    assert running.app[app_keys.HEALTH].faults == {}


async def test_versions_that_were_taken_back_are_not_read_from(running: Running, mover: Mover) -> None:
    """A run has seen that a power failure left a version half on disk; the next one does its work again."""
    alice, group = await filled(running, 20)
    mover.move(group, 8)
    mover.begin_turn(1)
    before = mover.version()
    known = set(mover.folder.rglob("*.parquet"))
    mover.append(group, 12)
    mover.execute("UPDATE archive_state SET version = ?", before)
    [damaged] = set(mover.folder.rglob("*.parquet")) - known
    damaged.write_bytes(b"")
    assert short(await alice.fetch(group)) == expected(1, 20), "by the version that is known"
    for version in range(mover.version(), before, -1):
        (mover.folder / "_delta_log" / f"{version:020d}.json").unlink()
    mover.begin_turn(2)
    mover.move(group, 15)
    assert short(await alice.fetch(group)) == expected(1, 20)


async def test_a_server_starts_without_its_archive(
    running: Running, mover: Mover, start_server: StartServer, config: Config
) -> None:
    alice, group = await filled(running, 10)
    mover.move(group, 8)
    mover.hide()
    await running.server.close()
    async with start_server(replace(config)) as again:
        alice.http, alice.url = again.http, again.url
        assert short(await alice.fetch(group, 8)) == expected(9, 10)
        for _ in range(100):
            if again.app[app_keys.HEALTH].faults:
                break
            await asyncio.sleep(0.05)
        assert list(again.app[app_keys.HEALTH].faults) == ["archive"]


async def test_few_pages_with_a_part_in_the_archive_are_in_memory_at_a_time(
    running: Running, mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they wait for, once something of them was read."""
    alice, group = await filled(running, 10)
    mover.move(group, 8)
    go_on, written, encode_all = threading.Event(), [], pages._encode_all

    def slow(*asked: Any) -> Any:
        written.append(asked)
        assert go_on.wait(30)
        return encode_all(*asked)

    monkeypatch.setattr(pages, "_encode_all", slow)
    cold = [asyncio.create_task(alice.fetch(group)) for _ in range(4 * CONCURRENT_READS)]
    try:
        await until(lambda: len(written) == 2 * CONCURRENT_READS)
        await asyncio.sleep(0.1)
        assert len(written) == 2 * CONCURRENT_READS
        assert short(await alice.fetch(group, 8)) == expected(9, 10)
    finally:
        go_on.set()
    assert [short(page) for page in await asyncio.gather(*cold)] == [expected(1, 10)] * len(cold)


async def test_reading_the_archive_does_not_keep_the_hot_store_waiting(
    running: Running, mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, group = await filled(running, 10)
    mover.move(group, 8)
    go_on, batches = threading.Event(), batches_of
    begun = 0

    def slow(query: QueryBuilder, sql: str) -> Iterator[Any]:
        nonlocal begun
        begun += 1
        assert go_on.wait(30)
        return batches(query, sql)

    monkeypatch.setattr(window, "batches", slow)
    cold = [asyncio.create_task(alice.fetch(group)) for _ in range(10)]
    try:
        while begun < CONCURRENT_READS:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(PATIENCE):
            assert await alice.send(group, b"11") == 11
            assert short(await alice.fetch(group, 8)) == expected(9, 11)
        assert begun == CONCURRENT_READS
    finally:
        go_on.set()
    assert [short(page) for page in await asyncio.gather(*cold)] == [expected(1, 11)] * 10


@pytest.mark.parametrize(("waited", "found"), [(0, [1, 2, 3]), (2, [3]), (4, [5, 6, 7]), (6, [7, 8]), (9, [])])
async def test_what_expires_while_a_read_waits_for_the_archive_is_not_served(
    running: Running, mover: Mover, monkeypatch: pytest.MonkeyPatch, waited: int, found: list[int]
) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends", expiry=90 * DAY)
    for n in range(1, 9):
        mover.send(group, alice.user_id, b"%d" % n, running.clock.now() - 90 * DAY + n - 1)
    mover.move(group, 6, 90 * DAY)
    begun, go_on, batches = threading.Event(), threading.Event(), batches_of

    def slow(query: QueryBuilder, sql: str) -> Iterator[Any]:
        begun.set()
        assert go_on.wait(30)
        return batches(query, sql)

    monkeypatch.setattr(window, "batches", slow)
    reading = asyncio.create_task(alice.fetch(group, 0, 3))
    assert await asyncio.to_thread(begun.wait, 30)
    running.clock.advance(waited)
    go_on.set()
    assert [message.sequence_num for message in await reading] == found


def test_a_server_without_an_archive_does_not_load_what_reads_one() -> None:
    code = "import sys, conclave.server.run; sys.exit(bool({'deltalake', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@dataclass
class World:
    """A group whose messages move while they are read, and the plain list that it is compared with."""

    alice: Client
    group: str
    mover: Mover
    chance: random.Random
    sent: int = 0
    border: int = 0
    underway: tuple[int, list[dict[str, Any]]] | None = None

    async def send(self) -> None:
        for _ in range(self.chance.randrange(8)):
            self.sent += 1
            assert await self.alice.send(self.group, b"%d" % self.sent) == self.sent

    async def move_a_step(self) -> None:
        if self.underway is None:
            last = self.chance.randint(self.border, self.sent)
            lifetime = self.chance.choice([KEEP, KEEP, 90 * DAY])
            self.underway = last, self.mover.append(self.group, last, lifetime)
        else:
            self.border, rows = self.underway
            self.mover.switch(self.group, self.border, rows)
            self.underway = None

    async def drop_copies(self) -> None:
        self.mover.drop_copies(self.group)

    async def rewrite(self) -> None:
        if self.border:
            self.mover.rewrite()

    async def happen(self) -> None:
        """Let a few things happen, in any order."""
        things: list[Callable[[], Any]] = [
            self.send,
            self.move_a_step,
            self.move_a_step,
            self.drop_copies,
            self.rewrite,
        ]
        for _ in range(self.chance.randrange(4)):
            await self.chance.choice(things)()


@pytest.mark.parametrize("seed", range(6))
async def test_a_reader_sees_each_message_once_and_in_order_while_they_move(
    running: Running, mover: Mover, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    alice, group = await filled(running, 60)
    world = World(alice, group, mover, chance, sent=60)
    before_asking, loop = batches_of, asyncio.get_running_loop()

    def disturbed(query: QueryBuilder, sql: str) -> Iterator[Any]:
        if chance.random() < 0.3:
            asyncio.run_coroutine_threadsafe(world.happen(), loop).result(60)
        return before_asking(query, sql)

    monkeypatch.setattr(window, "batches", disturbed)
    seen: list[tuple[int, bytes]] = []
    while True:
        limit = chance.choice([1, 3, 10, 50])
        page = short(await alice.fetch(group, len(seen), limit))
        assert len(page) <= limit
        seen += page
        assert seen == expected(1, len(seen))
        if not page:
            break
        await world.happen()
    assert len(seen) == world.sent


@pytest.mark.parametrize("seed", range(6))
async def test_pages_of_random_worlds_are_those_of_a_plain_list(running: Running, mover: Mover, seed: int) -> None:
    chance = random.Random(seed)
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    now, world = running.clock.now(), []
    for n in range(1, 81):
        sender, is_commit = chance.choice([alice, bob]), chance.random() < 0.2
        at = now - (80 - n) * 3 * DAY + chance.randrange(-5, 5) * DAY
        mover.send(group, sender.user_id, b"%d" % n, at, is_commit=is_commit)
        world.append((n, sender is bob and not is_commit, at))
    for last in sorted(chance.sample(range(1, 81), 4)):
        mover.move(group, last, chance.choice([KEEP, 365 * DAY, 30 * DAY]))
    gone_below = expired_before = bob_left = 0
    for _ in range(25):
        happening = chance.randrange(8)
        if happening == 0:
            gone_below = min(60, gone_below + chance.randrange(10))
        elif happening == 1:
            expired_before = max(expired_before, now - chance.randrange(150, 240) * DAY)
        elif happening == 2 and not bob_left:
            bob_left = 1
            await bob.post("/delete-account", password="correct horse")
        mover.execute("UPDATE groups SET gone_below = ?, expired_before = ?", gone_below, expired_before)
        after, limit = chance.randrange(82), chance.choice([1, 5, 20, 100])
        visible = [
            n
            for n, of_bob, at in world
            if n > max(after, gone_below) and at >= expired_before and not (of_bob and bob_left)
        ]
        assert short(await alice.fetch(group, after, limit)) == [(n, b"%d" % n) for n in visible[:limit]]
