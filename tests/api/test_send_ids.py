"""A send that is repeated after a lost answer is not stored twice, if its client gave it an id."""

import asyncio
from dataclasses import replace
from sqlite3 import Connection
from typing import Any
from uuid import uuid4

import pytest

from conclave import app_keys
from conclave.actions.messages import JointSend, Send
from conclave.store.engine.connection import of_store
from conclave.store.resources import send_ids
from conclave.wire.formats import Format
from tests.conftest import Running
from tests.support.cleaner import Cleaner
from tests.support.client import PASSWORD, Client, RefusedError, expect
from tests.support.listening import listening
from tests.support.protobuf import ProtobufClient

HOUR, DAY = 3_600, 86_400


@pytest.fixture(params=Format, ids=lambda each: each.name.lower())
async def alice(running: Running, request: pytest.FixtureRequest) -> Client:
    kind = ProtobufClient if request.param is Format.PROTOBUF else Client
    return await kind.register(running.http, running.url, "alice")


async def clean(running: Running, cleaner: Cleaner) -> dict[str, Any]:
    await running.settle()
    config = replace(running.config, cleanup=replace(running.config.cleanup, engine="sql"))
    return await asyncio.to_thread(cleaner.run, config, running.clock.now(), running.clock.set_by)


async def test_sending_again_gets_the_former_number_and_nobody_hears_of_it(running: Running, alice: Client) -> None:
    bob = await running.user("bob")
    group = await alice.create_group("g")
    await bob.join(group)
    send_id = str(uuid4())
    async with listening(bob) as stream:
        assert await alice.send(group, b"once", send_id=send_id) == 1
        assert await alice.send(group, b"twice", send_id=send_id) == 1
        assert await alice.send(group, b"after") == 2
        heard = [await stream.next(), await stream.next()]
    assert [data["sequence_num"] for _, data in heard] == [1, 2], "and nothing between"
    assert [each.body for each in await bob.fetch(group)] == [b"once", b"after"]


async def test_an_id_is_its_senders_and_its_groups_own(running: Running, alice: Client) -> None:
    bob = await running.user("bob")
    group, other = await alice.create_group("g"), await alice.create_group("other")
    await bob.join(group)
    send_id = str(uuid4())
    assert await alice.send(group, send_id=send_id) == 1
    assert await bob.send(group, send_id=send_id) == 2
    assert await alice.send(other, send_id=send_id) == 1
    assert await alice.send(group, send_id=str(uuid4())) == 3
    assert await bob.send(group, send_id=send_id) == 2


async def test_without_an_id_each_send_is_new(running: Running, alice: Client) -> None:
    group = await alice.create_group("g")
    assert [await alice.send(group) for _ in range(3)] == [1, 2, 3]
    assert await running.query("SELECT count(*) FROM send_ids") == [(0,)]


async def test_an_id_that_is_none_is_refused(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    refusal = await expect(alice.send(group, send_id="first"), 400, 101)
    assert list(refusal["errors"]) == ["send_id"]
    phone = ProtobufClient(running.http, running.url)
    await phone.login("alice")
    body = b"\x0a\x01A\xaa\x06\x03abc"  # mls_message, and field 101 with three bytes
    headers = {"Authorization": f"Bearer {phone.token}", "Content-Type": Format.PROTOBUF.value}
    url = f"{running.url}/api/v1/groups/{group}/messages"
    async with running.http.post(url, data=body, headers=headers) as refused:
        assert refused.status == 400
        assert b"send_id: must have 16 bytes" in await refused.read()


async def test_who_is_no_member_learns_nothing_and_who_is_back_gets_the_number(running: Running, alice: Client) -> None:
    bob = await running.user("bob")
    group = await alice.create_group("g")
    await bob.join(group)
    send_id = str(uuid4())
    assert await bob.send(group, send_id=send_id) == 1
    await bob.leave(group)
    await expect(bob.send(group, send_id=send_id), 401, 400)
    await bob.join(group)
    assert await bob.send(group, send_id=send_id) == 1
    await alice.post(f"/groups/{group}/delete")
    await expect(bob.send(group, send_id=send_id), 401, 400)


async def test_of_equal_ids_that_arrive_together_one_is_stored(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    send_id = str(uuid4())
    numbers = await asyncio.gather(*(alice.send(group, b"%d" % turn, send_id=send_id) for turn in range(20)))
    assert set(numbers) == {1}
    assert len(await alice.fetch(group)) == 1


async def test_in_one_transaction_the_first_of_equal_ids_is_stored(running: Running) -> None:
    alice = await running.user("alice")
    group = bytes.fromhex((await alice.create_group("g")).replace("-", ""))
    user = bytes.fromhex(alice.user_id.replace("-", ""))
    one, other = uuid4().bytes, uuid4().bytes
    sends = [Send(group, user, b"x", send_id=each) for each in (one, other, one, b"", one)]
    joint = JointSend(running.app[app_keys.CONTEXT])
    found = await running.app[app_keys.STORE].write(lambda connection: joint(of_store(connection), sends))
    assert found == [1, 2, 1, 3, 1]
    again = await running.app[app_keys.STORE].write(lambda connection: joint(of_store(connection), sends))
    assert again == [1, 2, 1, 4, 1]


async def test_a_send_without_an_id_costs_no_statement_more(running: Running) -> None:
    alice = await running.user("alice")
    group = bytes.fromhex((await alice.create_group("g")).replace("-", ""))
    joint = JointSend(running.app[app_keys.CONTEXT])
    sent = Send(group, bytes.fromhex(alice.user_id.replace("-", "")), b"x")
    statements: list[str] = []

    def send(connection: Connection) -> None:
        connection.set_trace_callback(statements.append)
        try:
            joint(of_store(connection), [sent, sent])
        finally:
            connection.set_trace_callback(None)

    await running.app[app_keys.STORE].write(send)
    assert any("INSERT INTO messages" in each for each in statements)
    assert not any("send_ids" in each for each in statements)


async def test_what_is_remembered_of_a_deleted_account_or_group_goes_too(running: Running, cleaner: Cleaner) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g")
    await bob.join(group)
    send_id = str(uuid4())
    for each in (alice, bob):
        await each.send(group, send_id=send_id)
    await bob.post("/delete-account", password=PASSWORD)
    await alice.post(f"/groups/{group}/delete")
    again = await running.user("bob")
    other = await again.create_group("g")
    assert await again.send(other, send_id=send_id) == 1
    assert await again.send(other, send_id=str(uuid4())) == 2
    running.clock.advance(DAY + 1)
    await clean(running, cleaner)
    assert await running.query("SELECT count(*) FROM send_ids") == [(0,)]


async def test_a_refused_send_does_not_use_its_id_up(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    send_id = str(uuid4())
    with pytest.raises(RefusedError):
        await alice.post(f"/groups/{group}/messages", mls_message="", send_id=send_id)
    assert await alice.send(group, send_id=send_id) == 1


async def test_an_id_outlives_its_message_for_a_day_and_not_much_longer(running: Running, cleaner: Cleaner) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g", expiry=HOUR)
    old, young = str(uuid4()), str(uuid4())
    assert await alice.send(group, send_id=old) == 1
    running.clock.advance(DAY)
    assert await alice.send(group, send_id=young) == 2
    await clean(running, cleaner)
    assert await running.query("SELECT count(*) FROM messages") == [(1,)], "the old one is erased"
    assert await alice.send(group, send_id=old) == 1, "a day has passed, not more"
    running.clock.advance(1)
    await clean(running, cleaner)
    assert await alice.send(group, send_id=young) == 2
    assert await alice.send(group, send_id=old) == 3, "forgotten: it counts as new"


async def test_very_many_ids_are_forgotten_in_steps(
    running: Running, cleaner: Cleaner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_ids, "PRUNE_BATCH", 2)
    alice = await running.user("alice")
    group = await alice.create_group("g")
    for _ in range(5):
        await alice.send(group, send_id=str(uuid4()))
    running.clock.advance(DAY + 1)
    await alice.send(group, send_id=str(uuid4()))
    await clean(running, cleaner)
    assert await running.query("SELECT sequence_num FROM send_ids") == [(6,)]
