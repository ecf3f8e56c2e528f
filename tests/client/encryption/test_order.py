"""The order of the server decides: changes at the same moment, invites that wait while epochs pass."""

import asyncio
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest

from conclave.client import Client, ClientError, MlsCodec, NoAnswerError, RefusedError
from conclave.client.encryption.headers import read_group_info
from conclave.client.errors import error_for
from conclave.client.transport import Call
from conclave.wire.results import FetchedMessage
from tests.client.encryption.conftest import NewDevice
from tests.client.encryption.devices import Device, agree, crossing, talk
from tests.client.encryption.failpoints import Failpoints
from tests.support import sample


async def accept(device: Device) -> None:
    [invite] = await device.client.invites()
    await device.client.accept_invite(invite.invite_id)


async def test_an_invite_during_which_an_epoch_passes_ends_with_everybody_in_one(device: NewDevice) -> None:
    alice, bob, carol = await device("alice"), await device("bob"), await device("carol")
    group = await alice.sync.membership.create("club", public=True)
    await bob.sync.membership.join(group)
    await agree(group, alice, bob)
    carol.takes_invites = False
    await alice.sync.membership.invite(group, "carol")
    epoch = alice.mls(group).epoch
    await bob.renew(group)
    await alice.until(lambda: alice.mls(group).epoch == epoch + 1)
    await accept(carol)
    await agree(group, alice, bob, carol)
    await talk(group, alice, bob, carol)


@pytest.mark.parametrize("last", [0, 1])
async def test_two_invites_by_two_admins_are_accepted_in_either_order(device: NewDevice, last: int) -> None:
    alice, bob = await device("alice"), await device("bob")
    carol, dave = await device("carol"), await device("dave")
    group = await alice.sync.membership.create("club", public=True)
    await bob.sync.membership.join(group)
    await agree(group, alice, bob)
    await alice.client.promote(group, bob.user_id)
    carol.takes_invites = dave.takes_invites = False
    await alice.sync.membership.invite(group, "carol")
    await bob.sync.membership.invite(group, "dave")
    for each in (carol, dave) if last else (dave, carol):
        await accept(each)
    await agree(group, alice, bob, carol, dave)
    await talk(group, alice, bob, carol, dave)


@pytest.mark.system
async def test_invites_are_accepted_while_their_inviter_is_away(device: NewDevice) -> None:
    alice, bob, carol = await device("alice"), await device("bob"), await device("carol")
    group = await alice.sync.membership.create("club")
    bob.takes_invites = carol.takes_invites = False
    for each in (bob, carol):
        await alice.sync.membership.invite(group, each.name)
    await alice.stop()
    await accept(bob)
    await bob.comes_in(group)
    await accept(carol)
    await carol.comes_in(group)
    await alice.connect()
    await agree(group, alice, bob, carol)
    await talk(group, alice, bob, carol)


async def test_two_admins_who_change_the_group_at_the_same_moment_end_in_one_state(device: NewDevice) -> None:
    alice, bob, carol = await device("alice"), await device("bob"), await device("carol")
    group = await alice.sync.membership.create("club", public=True)
    await bob.sync.membership.join(group)
    await agree(group, alice, bob)
    await alice.client.promote(group, bob.user_id)
    chance = sample.chance("two admins")

    async def change(admin: Device, number: int) -> None:
        with suppress(ClientError):
            match chance.choice(["renew", "come", "go", "talk"]):
                case "renew":
                    await admin.renew(group)
                case "come" if number % 8 == 0:  # so often the server hands out key packages of one user
                    await admin.sync.membership.invite(group, "carol")
                case "come":
                    await carol.sync.membership.join(group)
                case "go":
                    await admin.sync.membership.remove(group, carol.user_id)
                case "talk":
                    await admin.sync.send(group, f"{admin.name} {number}")

    for number in range(sample.amount(1_000, 12)):
        await asyncio.gather(change(alice, number), change(bob, number))
    for invite in await alice.client.invites_of(group):
        with suppress(ClientError):
            await alice.client.cancel_invite(group, invite.invitee_id)
    is_member = any(each.group_id == group for each in await carol.client.groups())
    everybody = [alice, bob, carol] if is_member else [alice, bob]
    await agree(group, *everybody)
    await talk(group, *everybody)


async def test_a_text_that_crosses_with_somebody_who_comes_in_reaches_everybody_once(device: NewDevice) -> None:
    """It is encrypted for an epoch that has passed when it arrives: who came in since could not read it."""
    alice, bob, carol = await device("alice"), await device("bob"), await device("carol")
    group, late = await crossing(alice, bob, carol)
    await alice.client.send(group, late)
    alice.sync.request_fetch(group)
    await carol.hears("crossed")
    await talk(group, alice, bob, carol)
    for each in (alice, bob, carol):
        assert each.shown(group).count("crossed") == 1
        assert None not in each.shown(group)


async def test_what_was_sent_again_is_taken_back_with_the_first(device: NewDevice) -> None:
    alice, bob, carol = await device("alice"), await device("bob"), await device("carol")
    group, late = await crossing(alice, bob, carol)
    await alice.client.send(group, late)
    alice.sync.request_fetch(group)
    for each in (alice, bob, carol):
        await each.hears("crossed")
    [number] = [each.sequence_num for each in alice.history.messages(group) if each.text == "crossed"]
    await alice.until(lambda: alice.codec.repeats_of(group, number))
    await alice.sync.take_back(group, number)
    for each in (alice, bob, carol):
        await each.until(lambda each=each: "crossed" not in each.shown(group))  # type: ignore[misc]  # mypy knows no default in a lambda
    await talk(group, alice, bob, carol)


def test_who_dropped_what_was_sent_again_can_take_it_back_with_the_first() -> None:
    """An admin who could read a text although it came late has both numbers of it."""
    alice_id, bob_id, carol_id, group = uuid4(), uuid4(), uuid4(), uuid4()
    with MlsCodec(None, alice_id) as alice, MlsCodec(None, bob_id) as bob, MlsCodec(None, carol_id) as carol:
        info = alice.create(group).group_info
        said = [FetchedMessage(1, bob_id, bob.join(group, info).commit, 0)]
        for each in (alice, bob):
            each.decode(group, said)
        alice.record_caught_up(group)
        late = alice.encode(group, "crossed")
        state = alice.record(group)
        assert state
        assert state.group
        said.append(FetchedMessage(2, carol_id, carol.join(group, state.group.group_info()).commit, 0))
        said.append(FetchedMessage(3, alice_id, late, 0))
        for each in (alice, bob):
            each.decode(group, said[1:])
        [again] = alice.pending_resends()
        assert bob.repeats_of(group, 3) == []
        assert bob.decode(group, [FetchedMessage(4, alice_id, alice.encode_resend(again), 0)]) == []
        assert bob.repeats_of(group, 3) == [4]


async def test_a_text_that_comes_many_epochs_late_reaches_everybody_once(device: NewDevice) -> None:
    alice, bob = await device("alice"), await device("bob")
    group = await alice.sync.membership.create("club", public=True)
    await bob.sync.membership.join(group)
    await agree(group, alice, bob)
    late = alice.codec.encode(group, "very late")
    for _ in range(4):
        await bob.renew(group)
        await agree(group, alice, bob)
    await alice.client.send(group, late)
    alice.sync.request_fetch(group)
    await bob.hears("very late")
    await talk(group, alice, bob)
    assert [each.shown(group).count("very late") for each in (alice, bob)] == [1, 1]


@pytest.mark.parametrize("lost", [1, 2], ids=["to the wish to join", "to the commit"])
async def test_who_joins_and_misses_an_answer_comes_in_all_the_same(device: NewDevice, lost: int) -> None:
    alice, bob = await device("alice"), await device("bob")
    group = await alice.sync.membership.create("club", public=True)
    Failpoints(lambda: None, lost_answer=lost).arm(bob.client, bob.codec, bob.history)
    with pytest.raises(NoAnswerError):
        await bob.sync.membership.join(group)
    await agree(group, alice, bob)
    await talk(group, alice, bob)


def test_who_gave_the_keys_up_does_not_come_in_by_a_group_info_of_an_epoch_before() -> None:
    """It would be alone in an epoch beside that of the others, who have seen the first commit."""
    alice_id, bob_id, group = uuid4(), uuid4(), uuid4()
    with MlsCodec(None, alice_id) as alice, MlsCodec(None, bob_id) as bob:
        info = alice.create(group).group_info
        commit = bob.join(group, info).commit
        bob.decode(group, [FetchedMessage(1, bob_id, commit, 0)])
        state = bob.record(group)
        assert state
        assert state.group
        later = state.group.group_info()
        bob.reset_keys()
        record = bob.record(group)
        assert record
        assert not bob.has_keys(group)
        [epoch_0, epoch_1] = [read_group_info(each) for each in (info, later)]
        assert epoch_0
        assert epoch_1
        assert bob.is_outdated(record, epoch_0)
        assert not bob.is_outdated(record, epoch_1)


def answers_lost(client: Client, then: ClientError, *, first: ClientError | None = None) -> None:
    """Have the next text stored while its sender hears ``first``, and then ``then`` at each further try."""
    transport, fails = client.transport, first or then
    once = transport._request_once

    async def failing(call: Call, kind: Any, written_in: Any) -> Any:
        nonlocal fails
        if not call.path.endswith("/messages") or call.method != "POST":
            return await once(call, kind, written_in)
        if fails is not then:
            await once(call, kind, written_in)
        told, fails = fails, then
        raise told

    transport._request_once = failing  # type: ignore[method-assign]


LOST, BAD_GATEWAY = NoAnswerError("lost"), RefusedError(502, 0, "the gateway says 502")


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (RefusedError(502, 0, "the gateway says 502"), BAD_GATEWAY),
        (LOST, error_for(500, 0, "it has failed", None, None)),
        (LOST, error_for(503, 0, "later", None, 120.0)),
        (LOST, error_for(429, 100, "later", None, 120.0)),
    ],
    ids=["502", "500", "503", "429"],
)
async def test_an_own_text_whose_answer_was_lost_can_be_read_when_it_comes_back(
    device: NewDevice, first: ClientError, then: ClientError
) -> None:
    """What was encrypted for a further try is erased then: nobody would know when the message goes."""
    alice = await device("alice")
    group = await alice.sync.membership.create("club")
    await agree(group, alice)
    send_id = uuid4()
    answers_lost(alice.client, then, first=first)
    with pytest.raises(type(then)):
        await alice.sync.send(group, "said once", send_id=send_id)
    del alice.client.transport._request_once
    await alice.sync.send(group, "said once", send_id=send_id)
    await alice.until(lambda: alice.history.fetched_up_to(group) == len(alice.shown(group)) > 0)
    assert alice.shown(group) == ["said once"]
    assert own_texts(alice) == []


async def test_nothing_stays_of_further_tries_where_the_first_came_before_them(device: NewDevice) -> None:
    alice = await device("alice")
    group = await alice.sync.membership.create("club")
    await agree(group, alice)
    send_id = uuid4()
    send = alice.client.send

    async def loses_its_answer(*what: Any, **how: Any) -> int:
        await send(*what, **how)
        raise LOST

    alice.client.send = loses_its_answer  # type: ignore[method-assign]
    for _ in range(3):
        with pytest.raises(NoAnswerError):
            await alice.sync.send(group, "said once", send_id=send_id)
        alice.sync.request_fetch(group)
        await alice.until(lambda: alice.shown(group) == ["said once"])
    assert own_texts(alice) == ["said once"] * 2
    alice.client.send = send  # type: ignore[method-assign]
    await alice.sync.send(group, "said once", send_id=send_id)
    assert own_texts(alice) == []


async def test_a_text_that_came_before_its_answer_stays_while_it_may_be_sent_again(device: NewDevice) -> None:
    alice, bob = await device("alice"), await device("bob")
    group = await alice.sync.membership.create("club", public=True)
    await bob.sync.membership.join(group)
    await agree(group, alice, bob)
    send = bob.client.send

    async def comes_first(*what: Any, **how: Any) -> int:
        number = await send(*what, **how)
        bob.sync.request_fetch(group)
        await bob.until(lambda: bob.shown(group) == ["hello"])
        return number

    bob.client.send = comes_first  # type: ignore[method-assign]
    await bob.sync.send(group, "hello", send_id=uuid4())
    assert own_texts(bob) == ["hello"], "he has just come in"


def own_texts(device: Device) -> list[str]:
    """What is in the file of keys of texts that were sent."""
    vault = device.codec._database
    places = vault.connection.execute("SELECT segment, body_id FROM own_texts").fetchall()
    return [vault.get(each).decode() for each in places]
