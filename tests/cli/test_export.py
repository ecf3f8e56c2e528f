"""`conclave export`: all that the server holds about one user, nothing of others, and nothing that has expired."""

import asyncio
import base64
import json
import os
import stat
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from conclave import app_keys
from conclave.actions import export as actions
from conclave.clock import FakeClock
from conclave.config.settings import Config
from conclave.store.views import export as store
from conclave.system import locks
from conclave.system.locks import LockedError
from tests.conftest import Running
from tests.support.archive import Mover
from tests.support.client import PASSWORD, encode
from tests.support.commands import Run, done, refused, runner
from tests.support.damage import flip

PACKAGE = b"\0\1\0\5 a key package"


@pytest.fixture
def run(config: Config, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(config, clock, tmp_path, monkeypatch)


async def exported(run: Run, user: str = "alice") -> dict[str, Any]:
    told: dict[str, Any] = json.loads(done(await asyncio.to_thread(run, "export", user)))
    return told


def own(told: dict[str, Any], group: str) -> list[tuple[int, bytes]]:
    """Number and body of the messages of a group."""
    found = [each for each in told["messages"] if each["group_id"] == group]
    return sorted((each["sequence_num"], base64.b64decode(each["body"])) for each in found)


async def test_everything_about_a_user_is_exported_and_no_secret(running: Running, run: Run) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    headers = {"Authorization": f"Bearer {alice.token}"}
    async with running.http.patch(f"{running.url}/api/v1/me", json={"alias": "A."}, headers=headers) as response:
        assert response.status == 200
    await alice.post("/key-packages", key_package_data=encode(PACKAGE))
    group, other = await alice.create_group("friends"), await bob.create_group("others")
    await bob.join(group)
    await alice.invite(group, carol)
    await carol.post("/groups", group_name="third")
    await bob.post(f"/groups/{other}/ban", user_id=alice.user_id)
    await alice.patch(group, message_expiry_seconds=600, update_message_expiry=True)
    done(await asyncio.to_thread(run, "hold", "add", "--user", "alice", "--reason", "case 17"))
    told = await exported(run)
    now = running.clock.now()
    assert told["account"] == {
        "user_id": alice.user_id,
        "username": "alice",
        "alias": "A.",
        "signing_key_fingerprint": "",
        "created_at": now,
        "disabled": False,
    }
    assert [set(each) for each in told["sessions"]] == [{"session_id", "created_at", "last_used_at", "expires_at"}]
    assert [(each["group_id"], each["role"]) for each in told["memberships"]] == [(group, "admin")]
    assert [base64.b64decode(each["body"]) for each in told["key_packages"]] == [PACKAGE]
    assert [(each["inviter_id"], each["invitee_id"]) for each in told["invites"]] == [(alice.user_id, carol.user_id)]
    assert told["bans"] == [{"group_id": other, "banned_at": now, "banned_by": bob.user_id}]
    assert told["bans_made"] == []
    assert told["expiries_set"] == [{"group_id": group}]
    made = {"group_id": other, "banned_id": alice.user_id, "banned_at": now}
    assert (await exported(run, "bob"))["bans_made"] == [made]
    assert [each["reason"] for each in told["holds"]] == ["case 17"]
    assert [each["action"] for each in told["audit"]] == ["policy_changed", "user_held", "account_exported"]
    text = json.dumps(told)
    [(password_hash,)] = await running.query("SELECT password_hash FROM users WHERE username = 'alice'")
    assert all(secret not in text for secret in (PASSWORD, alice.token, password_hash, "token_hash"))


async def test_own_messages_are_exported_page_by_page_and_those_of_others_are_not(
    running: Running, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "WINDOW", 4)
    monkeypatch.setattr(store, "PAGE_MESSAGES", 3)
    monkeypatch.setattr(store, "PAGE_BYTES", 20)
    alice, bob = await running.users("alice", "bob")
    group, left = await alice.create_group("friends"), await bob.create_group("left")
    await bob.join(group)
    await alice.join(left)
    for number in range(1, 30):
        await (alice if number % 3 else bob).send(group, b"body %d" % number)
    await alice.post(f"/groups/{group}/commit", commit_message=encode(b"commit"))
    await alice.send(left, b"before leaving")
    await alice.post(f"/groups/{left}/leave", commit_message=encode(b"good bye"))
    told = await exported(run)
    sent = [(number, b"body %d" % number) for number in range(1, 30) if number % 3]
    assert own(told, group) == [*sent, (30, b"commit")]
    assert own(told, left) == [(1, b"before leaving"), (2, b"good bye")]
    assert [each["is_commit"] for each in told["messages"] if each["group_id"] == left] == [False, True]


async def test_numbers_that_a_restore_left_out_take_no_time(running: Running, run: Run) -> None:
    """After a restore numbers go on far beyond the last one: there are no more pages for that."""
    [alice] = await running.users("alice")
    group = await alice.create_group("friends")
    assert await alice.send(group, b"before") == 1
    far = 2**51
    await running.app[app_keys.STORE].write(
        lambda connection: connection.execute("UPDATE groups SET last_seq = ?", (far,))
    )
    assert await alice.send(group, b"after") == far + 1
    pages: list[store.ExportPage] = []
    after: int | None = 0
    while after is not None and len(pages) < 10:
        asked = UUID(group).bytes, UUID(alice.user_id).bytes, after, running.clock.now()
        page = await running.app[app_keys.STORE].read(store.page, *asked)
        assert page
        pages.append(page)
        after = page.after
    assert [message.body for page in pages for message in page.messages] == [b"before", b"after"]
    assert after is None, "there is an end"
    assert own(await exported(run), group) == [(1, b"before"), (far + 1, b"after")]


async def test_what_clients_do_not_get_is_not_exported(running: Running, run: Run) -> None:
    alice, bob = await running.users("alice", "bob")
    group, gone = await alice.create_group("friends"), await alice.create_group("gone")
    await bob.join(group)
    await alice.patch(group, message_expiry_seconds=60, update_message_expiry=True)
    await alice.send(group, b"old")
    await alice.send(gone, b"deleted")
    await alice.post(f"/groups/{gone}/delete")
    running.clock.advance(61)
    await alice.send(group, b"new")
    await alice.send(group, b"timed", seconds=5)
    assert own(await exported(run), group) == [(2, b"new"), (3, b"timed")]
    await alice.post(f"/groups/{group}/read", sequence_num=3)
    running.clock.advance(6)
    told = await exported(run)
    assert own(told, group) == [(message.sequence_num, message.body) for message in await alice.fetch(group)]
    assert (2, b"new") in own(told, group)
    assert {each["group_id"] for each in told["messages"]} == {group}


async def test_an_invite_that_has_expired_is_not_exported_nor_counted(running: Running, run: Run) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await alice.invite(group, bob)
    running.clock.advance(running.config.invite_ttl_seconds)
    assert [len((await exported(run, name))["invites"]) for name in ("alice", "bob")] == [1, 1]
    assert json.loads(done(await asyncio.to_thread(run, "user", "show", "bob", "--json")))["invites"] == 1
    running.clock.advance(1)
    assert await running.query("SELECT count(*) FROM invites") == [(1,)], "cleanup has not come to it"
    assert [(await exported(run, name))["invites"] for name in ("alice", "bob")] == [[], []]
    assert json.loads(done(await asyncio.to_thread(run, "user", "show", "bob", "--json")))["invites"] == 0


async def test_messages_of_both_tiers_are_exported_once(running: Running, run: Run) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    for number in range(1, 13):
        await (alice if number % 2 else bob).send(group, b"%d" % number)
    Mover(running.config).move(group, 8)
    assert own(await exported(run), group) == [(number, b"%d" % number) for number in range(1, 13, 2)]
    assert len((await exported(run, "bob"))["messages"]) == 6


async def test_no_message_moves_while_its_sender_is_exported_be_it_the_first_that_ever_moves(
    running: Running, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody would find it: the archive was looked into before, and the database is read beyond it by then."""
    monkeypatch.setattr(store, "PAGE_MESSAGES", 3)
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    for number in range(1, 13):
        await alice.send(group, b"%d" % number)
    (tmp_path / "conclave.toml").write_text(f'database_path = "{running.config.database}"\n[archive]\nafter = "7d"\n')
    original, refused_runs = actions.page, []

    def page(*values: Any) -> store.ExportPage | None:
        found = original(*values)
        assert found
        try:
            with locks.hold(running.config.database, locks.CLEANUP):
                Mover(running.config).move(group, 10)
        except LockedError:
            refused_runs.append(found.after)
        return found

    monkeypatch.setattr(actions, "page", page)
    assert own(await exported(run), group) == [(number, b"%d" % number) for number in range(1, 13)]
    assert refused_runs == [3, 6, 9, None]


async def test_a_file_is_the_operators_alone_and_never_written_over(running: Running, run: Run, tmp_path: Path) -> None:
    alice = await running.user("alice")
    target = tmp_path / "alice.json"
    result = await asyncio.to_thread(run, "export", alice.user_id, "--output", str(target))
    assert done(result) == ""
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert json.loads(target.read_text())["messages"] == []
    assert "File exists" in refused(await asyncio.to_thread(run, "export", "alice", "--output", str(target)))
    assert json.loads(target.read_text())["account"]["username"] == "alice"
    assert "No such file" in refused(await asyncio.to_thread(run, "export", "alice", "--output", str(tmp_path / "a/b")))


async def test_an_export_that_fails_leaves_no_file(
    running: Running, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    await alice.send(group, b"1")
    Mover(running.config).move(group, 1)
    running.config.archive_path.rename(tmp_path / "elsewhere")
    target = tmp_path / "alice.json"
    assert str(running.config.archive_path) in refused(
        await asyncio.to_thread(run, "export", "alice", "--output", str(target))
    )
    assert not target.exists()
    log = await asyncio.to_thread(run, "evidence", "audit", "--json")
    assert "account_exported" in done(log), "the attempt is recorded"


def test_an_unknown_user_is_told_in_a_line(config: Config, run: Run) -> None:
    assert "no such database" in refused(run("export", "alice"))


async def test_who_is_not_there_is_told_in_a_line(running: Running, run: Run) -> None:
    assert "no such user: 'alice'" in refused(await asyncio.to_thread(run, "export", "alice"))


async def test_a_message_that_the_disk_has_altered_is_not_exported(running: Running, run: Run, tmp_path: Path) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    bodies = [os.urandom(300) for _ in range(3)]
    for body in bodies:
        await alice.send(group, body)
    mover = Mover(running.config)
    mover.move(group, 3)
    path = flip(mover.folder, mover.at_rest[1])
    target = tmp_path / "alice.json"
    line = refused(await asyncio.to_thread(run, "export", "--output", str(target), "alice"))
    assert "message 2 of a group is damaged: see docs/" in line
    assert not target.exists()
    path.write_bytes(b"\0" * path.stat().st_size)
    assert str(mover.folder) in refused(await asyncio.to_thread(run, "export", "alice")), "in one line, too"


def all_own(told: dict[str, Any]) -> list[tuple[str, int, bytes]]:
    found = ((each["group_id"], each["sequence_num"], base64.b64decode(each["body"])) for each in told["messages"])
    return sorted(found)


async def test_what_a_hold_keeps_is_exported_after_the_account_and_its_groups_are_gone(
    running: Running, run: Run, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "WINDOW", 3)
    monkeypatch.setattr(store, "PAGE_MESSAGES", 2)
    alice, bob = await running.users("alice", "bob")
    group, deleted = await alice.create_group("friends", expiry=100), await alice.create_group("deleted")
    for each in (group, deleted):
        await bob.join(each)
    for number in range(8):
        await (bob if number % 3 else alice).send(group, b"body %d" % number)
    commit = await bob.post(f"/groups/{group}/commit", commit_message=encode(b"commit"))
    await bob.send(deleted, b"in a group that goes")
    await bob.send(group, b"burns", 5)
    done(await asyncio.to_thread(run, "hold", "add", "--user", "bob", "--reason", "case 17"))
    clock.advance(200)
    await alice.post(f"/groups/{deleted}/delete")
    expected = [(group, number + 1, b"body %d" % number) for number in range(8) if number % 3]
    expected = sorted([*expected, (group, 9, b"commit"), (group, 10, b"burns"), (deleted, 1, b"in a group that goes")])
    assert commit is not None
    assert all_own(await exported(run, "bob")) == [], "all is hidden by now"
    by_hold = json.loads(done(await asyncio.to_thread(run, "export", "--hold", "1")))
    assert all_own(by_hold) == expected
    assert by_hold["account"]["username"] == "bob"
    await bob.post("/delete-account", password=PASSWORD)
    refusal = refused(await asyncio.to_thread(run, "export", "bob"))
    assert "use the id or --hold for a deleted account under a legal hold" in refusal
    for words in (("--hold", "1"), (bob.user_id,)):
        told = json.loads(done(await asyncio.to_thread(run, "export", *words)))
        assert all_own(told) == expected
        assert told["account"] == {"user_id": bob.user_id, "deleted": True, "username": "bob"}
        assert [each["reason"] for each in told["holds"]] == ["case 17"]
    assert told["audit"][-1]["details"] == {"hold": 1}
    listed = done(await asyncio.to_thread(run, "hold", "list", "--json"))
    assert json.loads(listed)["subject_id"] == bob.user_id
    done(await asyncio.to_thread(run, "hold", "release", "1"))
    assert "no such user" in refused(await asyncio.to_thread(run, "export", bob.user_id))
    assert "no such hold on a user: 1" in refused(await asyncio.to_thread(run, "export", "--hold", "1"))


async def test_what_a_hold_keeps_in_the_archive_is_exported_too(running: Running, run: Run) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    for number in range(4):
        await (bob if number % 2 else alice).send(group, b"body %d" % number)
    await bob.post(f"/groups/{group}/commit", commit_message=encode(b"commit"))
    Mover(running.config).move(group, 5)
    await bob.send(group, b"after it")
    done(await asyncio.to_thread(run, "hold", "add", "--user", "bob", "--reason", "case 17"))
    expected = [(group, 2, b"body 1"), (group, 4, b"body 3"), (group, 5, b"commit"), (group, 6, b"after it")]
    assert all_own(json.loads(done(await asyncio.to_thread(run, "export", "--hold", "1")))) == expected
    await bob.post("/delete-account", password=PASSWORD)
    await alice.post(f"/groups/{group}/delete")
    assert all_own(json.loads(done(await asyncio.to_thread(run, "export", "--hold", "1")))) == expected
