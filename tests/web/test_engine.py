"""The engine of the browser chat with a real server and the Python client."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from conclave.client.encryption.comparison import comparison_code
from tests.support.client import PASSWORD
from tests.support.proxies import free_ports
from tests.support.server import conclave
from tests.web.chatter import Chatters, FaultError
from tests.web.conftest import Club, NewDevice
from tests.web.node import needs_node
from tests.web.people import server_on

pytestmark = [needs_node, pytest.mark.system]


async def test_browser_and_terminal_talk_in_a_group_of_the_browsers(club: Club) -> None:
    alice, bob, group = club
    await alice("send", group, "hello bob")
    await bob.hears("hello bob")
    await bob.sync.send(UUID(group), "hello @alice")
    received = await alice.receives("hello @alice")
    assert received["isMention"]
    assert received["sender"] == "bob"
    assert await alice.texts() == ["hello bob", "hello @alice"]


async def test_browser_and_terminal_talk_in_a_group_of_the_terminals(bobs_club: Club) -> None:
    alice, bob, group = bobs_club
    await bob.sync.send(UUID(group), "welcome")
    await alice.receives("welcome")
    await alice("send", group, "thanks")
    await bob.hears("thanks")


async def test_a_browser_joins_a_public_group_and_reads_after_key_renewals(
    chatters: Chatters, device: NewDevice
) -> None:
    bob = await device("bob")
    group = await bob.sync.membership.create("club", public=True)
    alice = await chatters.new("alice")
    [found] = await alice("findPublic", "club")
    await alice("joinPublic", found["groupId"])
    await alice("open", str(group))
    await alice.group(str(group))
    await alice("send", str(group), "hello")
    await bob.hears("hello")
    await bob.sync.send(group, "hello too")
    await alice.receives("hello too")
    await bob.renew(group)
    await bob.sync.send(group, "renewed")
    await alice.receives("renewed")


async def test_messages_are_there_after_a_restart(bobs_club: Club) -> None:
    alice, bob, group = bobs_club
    await bob.sync.send(UUID(group), "before")
    await alice.receives("before")
    await alice.restart()
    await alice("open", group)
    await alice.receives("before")
    await bob.sync.send(UUID(group), "after")
    await alice.receives("after")
    await alice("send", group, "still here")
    await bob.hears("still here")


async def test_a_message_whose_response_is_lost_is_sent_once_also_after_a_restart(
    chatters: Chatters, club: Club
) -> None:
    alice, bob, group = club
    await chatters.ask("loseAnswers", count=100)
    await alice("send", group, "once")
    await bob.hears("once")
    await alice.restart()
    await chatters.ask("loseAnswers", count=0)
    await alice("open", group)
    await alice.receives("once")
    await alice.until(lambda view: not view["conversation"]["sending"])
    await alice("send", group, "twice")
    await alice.receives("twice")
    await bob.hears("twice")
    assert bob.texts_told() == ["once", "twice"]
    assert await alice.texts() == ["once", "twice"]


async def test_a_message_that_expires_while_its_response_is_lost_does_not_stay_queued(
    chatters: Chatters, club: Club
) -> None:
    alice, bob, group = club
    await alice("setExpiry", group, 2)
    await chatters.ask("loseAnswers", count=100)
    await alice("send", group, "soon gone")
    await bob.hears("soon gone")
    await asyncio.sleep(3.5)
    await alice.restart()
    await chatters.ask("loseAnswers", count=0)
    await alice("open", group)
    await alice.until(lambda view: view["conversation"] and not view["conversation"]["sending"])
    assert not await alice.texts()


async def test_the_view_has_the_beginning_of_a_long_text(chatters: Chatters) -> None:
    alice = await chatters.new("alice")
    group = await alice("createGroup", "club")
    await alice("open", group)
    await alice("send", group, "a" * 20_000)
    [shown] = await alice.until(lambda view: view["conversation"]["messages"])
    assert (len(shown["text"]), shown["omitted"]) == (16_000, 4_000)
    assert await alice("fullText", shown["number"]) == "a" * 20_000
    assert await alice("fullText", shown["number"] + 1) is None


async def test_a_direct_conversation_can_be_started_again_after_leaving_it(chatters: Chatters) -> None:
    alice, bob = [await chatters.new(each) for each in ("alice", "bob")]
    former = await alice("openDirect", "bob")
    await bob.invited()
    await alice("leave", former)
    # Bob is still in the former group, which has the usual name.
    again = await alice("openDirect", "bob")
    assert await bob.invited() == again
    assert await alice("openDirect", "bob") == again
    await alice.until(lambda view: [each["title"] for each in view["groups"]] == ["bob"])
    assert (await alice.view())["groups"][0]["direct"]


async def test_a_group_can_have_any_title_also_one_that_is_in_use(chatters: Chatters) -> None:
    alice = await chatters.new("alice")
    for title in ("Club", "Club", "日本", "日本"):
        await alice("createGroup", title)
    groups = await alice.until(lambda view: len(view["groups"]) == 4 and view["groups"])
    assert [each["title"] for each in groups] == ["Club", "Club", "日本", "日本"]
    assert sorted(each["name"] for each in groups)[:2] == ["Club", "Club_2"]


async def test_pending_commands_do_not_undo_a_logout(chatters: Chatters) -> None:
    alice = await chatters.new("alice")
    await asyncio.gather(alice("setAlias", "Al"), alice("logout"), return_exceptions=True)
    await alice.until(lambda view: view["phase"] == "out" and view["account"] is None)
    await alice.restart()
    assert (await alice.until(lambda view: view["phase"] != "starting" and view))["account"] is None
    login = alice("login", "alice", PASSWORD, True)
    await asyncio.gather(login, alice("logout"), return_exceptions=True)
    await alice.restart()
    assert (await alice.until(lambda view: view["phase"] != "starting" and view))["phase"] == "out"


async def test_a_message_discarded_while_its_response_is_lost_is_taken_back(chatters: Chatters, club: Club) -> None:
    alice, bob, group = club
    await chatters.ask("loseAnswers", count=100)
    await alice("send", group, "regretted")
    await bob.hears("regretted")
    [sending] = await alice.until(lambda view: view["conversation"]["sending"])
    await alice("discard", group, sending["sendId"])
    assert not (await alice.view())["conversation"]["sending"]
    await chatters.ask("loseAnswers", count=0)
    await alice("send", group, "meant")
    await alice.receives("meant")
    await bob.until(lambda: bob.shown(UUID(group)) == ["meant"])
    await alice.until(lambda view: len(view["conversation"]["messages"]) == 1)


async def test_messages_written_offline_are_sent_in_order(chatters: Chatters, club: Club) -> None:
    alice, bob, group = club
    await chatters.ask("network", isOffline=True)
    for text in ("one", "two", "three"):
        await alice("send", group, text)
    await alice.restart()
    await chatters.ask("network", isOffline=False)
    await bob.hears("three")
    assert bob.texts_told() == ["one", "two", "three"]


async def test_messages_expire_at_their_second_and_after_a_restart(chatters: Chatters, club: Club) -> None:
    alice, bob, group = club
    await bob.sync.send(UUID(group), "soon gone")
    await alice.receives("soon gone")
    trial = await alice("previewExpiry", group, 4)
    assert trial == {"messagesExpiring": 0, "oldestExpiring": 0, "effective": 4}
    await alice("setExpiry", group, 4)
    await alice.until(lambda view: view["groups"][0]["lifetime"]["effective"] == 4)
    await bob.sync.send(UUID(group), "gone too")
    await alice.receives("gone too")
    await alice.until(lambda view: not view["conversation"]["messages"], 8)
    await bob.sync.send(UUID(group), "gone while away")
    await alice.receives("gone while away")
    await chatters.ask("network", isOffline=True)
    await asyncio.sleep(5)
    await alice.restart()
    await alice("open", group)
    assert not await alice.texts()


async def test_self_destructing_and_taking_back(club: Club) -> None:
    alice, bob, group = club
    await bob.sync.send(UUID(group), "burns", self_destruct_seconds=2)
    burning = await alice.receives("burns")
    assert burning["goneAt"] is None
    await asyncio.sleep(2.5)
    assert "burns" in await alice.texts()
    await alice("markSeen", group, [burning["number"]])
    await alice.until(lambda view: not view["conversation"]["messages"], 5)
    await bob.sync.send(UUID(group), "regretted")
    regretted = await alice.receives("regretted")
    await bob.sync.take_back(UUID(group), regretted["number"])
    await alice.until(lambda view: not view["conversation"]["messages"], 5)
    await alice("send", group, "mine")
    await bob.hears("mine")
    mine = await alice.receives("mine")
    await alice("takeBack", group, mine["number"])
    assert not await alice.texts()
    await bob.until(lambda: not bob.shown(UUID(group)))


async def test_a_removed_member_loses_the_group_and_rejoins_by_an_invite(bobs_club: Club) -> None:
    alice, bob, group = bobs_club
    await bob.sync.send(UUID(group), "before")
    await alice.receives("before")
    await bob.sync.membership.remove(UUID(group), UUID((await alice.view())["account"]["userId"]))
    await alice.until(lambda view: not view["groups"] and view["conversation"] is None)
    await bob.sync.membership.invite(UUID(group), "alice")
    await alice.invited()
    await alice("open", group)
    await bob.sync.send(UUID(group), "again")
    await alice.receives("again")
    assert await alice.texts() == ["again"]


async def test_comparison_codes_match_the_terminals_and_a_changed_key_holds_messages_back(club: Club) -> None:
    alice, bob, group = club
    view = await alice.view()
    key = next(each["key"] for each in view["groups"][0]["members"] if not each["isSelf"])
    assert key["fingerprint"] == bob.codec.fingerprint
    code = await alice("comparisonCode", str(bob.user_id), key["fingerprint"])
    expected = comparison_code(bob.codec.fingerprint, view["account"]["fingerprint"])
    assert (tuple(code["digits"]), tuple(code["words"])) == (expected.digits, expected.words)
    await alice("verify", str(bob.user_id), key["fingerprint"])
    await alice.until(lambda view: view["groups"][0]["encryption"]["verified"] == 1)
    await bob.sync.reset()
    await alice.until(lambda view: view["groups"][0]["encryption"]["changed"] == [str(bob.user_id)])
    await alice("open", group)
    await alice("send", group, "held back")
    [held] = await alice.until(lambda view: view["conversation"]["sending"])
    await alice.until(lambda view: view["conversation"]["sending"][0]["state"] == "held")
    assert held["text"] == "held back"
    await bob.comes_in(UUID(group))
    await alice("acceptKey", str(bob.user_id), bob.codec.fingerprint)
    await bob.hears("held back")


async def test_a_login_that_replaces_another_device_needs_confirmation(chatters: Chatters, club: Club) -> None:
    _, bob, group = club
    second = await chatters.new("second", register=False)
    assert await second("login", "bob", "correct horse") == "otherDevice"
    assert (await second.view())["phase"] == "out"
    assert await second("login", "bob", "correct horse", True) == "in"
    await second.group(group)
    await bob.until(lambda: bob.codec.view(UUID(group)).status == "replaced")


async def test_a_logout_erases_everything(chatters: Chatters) -> None:
    alice = await chatters.new("alice")
    await alice("createGroup", "club")
    await alice("logout")
    view = await alice.until(lambda view: view["phase"] == "out" and view)
    assert view["account"] is None
    assert view["groups"] == []
    with pytest.raises(FaultError):
        await alice("createGroup", "club")


async def test_it_says_that_the_servers_clock_is_in_doubt_and_continues_after(programs: Path, tmp_path: Path) -> None:
    [port] = free_ports(1)
    with server_on(tmp_path, port) as server:
        async with Chatters(programs / "chatter.mjs", server.url, tmp_path) as chatters:
            alice = await chatters.new("alice")
            group = await alice("createGroup", "club")
            await alice("open", group)
            await alice("send", group, "before")
            await alice.receives("before")
            server.stop()
            with closing(sqlite3.connect(tmp_path / "server" / "conclave.db")) as database, database:
                database.execute("UPDATE messages SET created_at = created_at + 7200")
            with server_on(tmp_path, port) as doubting:
                await alice("reconnect")
                await alice.until(lambda view: "clock is in doubt" in view["connection"]["why"])
                await alice("send", group, "meanwhile")
                accept = ("cleanup", "run", "--accept-clock", "--config", doubting.config)
                assert conclave(*accept, cwd=doubting.folder).returncode == 0
                await alice.receives("meanwhile")
                await alice.until(lambda view: view["connection"] == {"state": "online", "why": "", "retryAt": 0})
