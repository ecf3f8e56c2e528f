"""What is taken back while it is sent again: the second message follows the first, whoever has heard of it by then."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from conclave.client.encryption.texts import SENT_SECONDS
from conclave.client.errors import error_for
from conclave.client.transport import Call
from tests.client.encryption.conftest import NewDevice
from tests.client.encryption.devices import Device, crossing, talk
from tests.client.encryption.test_branches import GROUP, Person, Server, club, kept, until_quiet

__all__ = ["club"]


class TestWhileItIsUnderWay:
    """Alice's text has come too late for Carol; it was sent again, and the answer is lost, or not read yet."""

    @pytest.fixture
    def late(self, club: tuple[Server, list[Person]]) -> tuple[Server, list[Person], int, bytes]:
        """The number of the first message, and the payload of the second."""
        server, people = club
        alice, _, carol = people
        payload = alice.codec.encode(GROUP, "crossed")
        carol.joins()
        for each in people:
            each.read()
        server.store(alice.user_id, payload)
        for each in people:
            each.read()
        [again] = alice.codec.pending_resends()
        return server, people, len(server.messages), alice.codec.encode_resend(again)

    @pytest.mark.parametrize("is_answered", [True, False], ids=["it is answered", "the answer is lost"])
    def test_it_is_to_be_taken_back_once_it_comes(
        self, late: tuple[Server, list[Person], int, bytes], *, is_answered: bool
    ) -> None:
        server, [alice, *others], number, payload = late
        if is_answered:
            alice.codec.drop_resend(alice.codec.pending_resends()[0].key)
        alice.codec.erase_messages(GROUP, [number], are_taken_back=True)
        assert kept([alice]) == [""], "its text is in no file any more"
        assert alice.codec.pending_take_backs() == []
        server.store(alice.user_id, payload)
        texts = list(alice.texts)
        until_quiet(server, [alice, *others], 2.0)
        assert alice.texts == texts, "nor is it shown as something that cannot be read"
        assert alice.codec.pending_take_backs() == [(GROUP, number + 1)]
        assert kept([alice]) == []
        alice.codec.record_taken_back(GROUP, number + 1)
        assert alice.codec.pending_take_backs() == []

    def test_it_is_not_where_the_first_is_gone_by_itself(self, late: tuple[Server, list[Person], int, bytes]) -> None:
        server, [alice, *others], number, payload = late
        alice.codec.erase_messages(GROUP, [number])
        assert kept([alice]) == [""]
        server.store(alice.user_id, payload)
        texts = list(alice.texts)
        until_quiet(server, [alice, *others], 2.0)
        assert alice.texts == texts
        assert alice.codec.pending_take_backs() == []
        assert others[-1].texts == ["crossed"]

    def test_it_is_where_it_has_come_before_that_is_heard(self, late: tuple[Server, list[Person], int, bytes]) -> None:
        """An admin has taken the first one back, and had not read the second one yet."""
        server, people, number, payload = late
        server.store(people[0].user_id, payload)
        until_quiet(server, people, 2.0)
        for each in people:
            each.codec.erase_messages(GROUP, [number], are_taken_back=True)
        assert [each.codec.pending_take_backs() for each in people] == [[(GROUP, number + 1)], [], []]

    def test_it_is_forgotten_where_it_never_comes(self, late: tuple[Server, list[Person], int, bytes]) -> None:
        server, [alice, *_], number, _ = late
        alice.codec.erase_messages(GROUP, [number], are_taken_back=True)
        server.time += SENT_SECONDS + 1
        alice.says("two days later")
        assert kept([alice]) == ["two days later"]


def test_what_came_while_a_client_was_away_for_days_is_readable_though_another_group_was_first(
    club: tuple[Server, list[Person]],
) -> None:
    server, [alice, *_] = club
    other = uuid4()
    alice.codec.create(other)
    alice.codec.record_caught_up(other)
    alice.says("before the lid was closed")
    server.time += SENT_SECONDS + 1
    alice.codec.encode(other, "back again")
    alice.read()
    assert alice.texts[-1] == "before the lid was closed"


@pytest.mark.system
async def test_a_text_that_is_taken_back_while_the_answer_to_its_repeat_is_lost_goes_for_everybody(
    device: NewDevice,
) -> None:
    alice, bob, carol = await device("alice"), await device("bob"), await device("carol")
    group, payload = await crossing(alice, bob, carol)
    number = await alice.client.send(group, payload)
    is_stored, is_lost = loses_an_answer(alice)
    alice.sync.request_fetch(group)
    await is_stored.wait()
    await carol.hears("crossed")
    await alice.sync.take_back(group, number)
    is_lost.set()
    alice.sync.request_fetch(group)
    await alice.until(lambda: alice.history.fetched_up_to(group) > number)
    for each in (alice, bob, carol):
        await each.until(lambda each=each: each.shown(group) == [])  # type: ignore[misc]  # mypy knows no default in a lambda
    assert [each.redacted for each in await served(carol, group, number)] == [True, True]
    await talk(group, alice, bob, carol)


def loses_an_answer(device: Device) -> tuple[asyncio.Event, asyncio.Event]:
    """Have the next text stored, and its answer lost; return what is set when it is stored, and what to set then."""
    transport = device.client.transport
    once, is_stored, is_lost = transport._request_once, asyncio.Event(), asyncio.Event()

    async def losing(call: Call, kind: Any, written_in: Any) -> Any:
        answer = await once(call, kind, written_in)
        if call.method == "POST" and call.path.endswith("/messages"):
            del transport._request_once
            is_stored.set()
            await is_lost.wait()
            raise error_for(500, 0, "it has failed", None, None)
        return answer

    transport._request_once = losing  # type: ignore[method-assign]
    return is_stored, is_lost


async def served(device: Device, group: UUID, number: int) -> Any:
    return [
        each
        for each in await device.client.fetch(group, number - 1, include_redacted=True)
        if each.sender_id != device.user_id
    ]
