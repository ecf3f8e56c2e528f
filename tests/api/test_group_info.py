"""A group info is replaced by whatever brings one, but never by one that another commit has outdated."""

from collections.abc import Awaitable, Callable

import pytest

from conclave.client.mls.codec import opaque, uint16, uint64
from tests.conftest import Running
from tests.support.client import Client, encode, expect
from tests.support.protobuf import ProtobufClient

Way = Callable[[Client, Client, str, bytes], Awaitable[None]]
"""A way by which alice or bob, both members, store a group info."""


def info(epoch: int, mls_group: bytes = b"mls group") -> bytes:
    """What the server reads of a group info, and something after it."""
    return b"".join(map(uint16, (1, 4, 1, 1))) + opaque(mls_group) + uint64(epoch) + b"the rest"


async def commits(alice: Client, bob: Client, group: str, new: bytes) -> None:
    await bob.post(f"/groups/{group}/commit", commit_message=encode(b"commit"), group_info=encode(new))


async def removes(alice: Client, bob: Client, group: str, new: bytes) -> None:
    await alice.act("remove", group, bob, commit_message=encode(b"commit"), group_info=encode(new))


async def bans(alice: Client, bob: Client, group: str, new: bytes) -> None:
    await alice.act("ban", group, bob, commit_message=encode(b"commit"), group_info=encode(new))


async def leaves(alice: Client, bob: Client, group: str, new: bytes) -> None:
    await bob.post(f"/groups/{group}/leave", commit_message=encode(b"commit"), group_info=encode(new))


async def accepts(alice: Client, bob: Client, group: str, new: bytes) -> None:
    await bob.leave(group)
    carried = {"commit_message": encode(b"commit"), "welcome_message": encode(b"welcome"), "group_info": encode(new)}
    await alice.post(f"/groups/{group}/escrow-invite", invitee_id=bob.user_id, **carried)
    [invite] = (await bob.get("/invites"))["invites"]
    await bob.post(f"/invites/{invite['invite_id']}/accept")


@pytest.mark.parametrize("way", [commits, removes, bans, leaves, accepts])
@pytest.mark.parametrize(
    ("stored", "new", "stays"),
    [
        (info(7), info(6), True),
        (info(7), info(7) + b" of a commit that lost", True),
        (info(7), info(8), False),
        (info(2**63), info(2**63 - 1), True),
        (info(7), info(6, b"another"), False),
        (info(7), b"unreadable", False),
        (b"unreadable", info(0), False),
    ],
)
async def test_a_newer_group_info_stays(running: Running, way: Way, stored: bytes, new: bytes, *, stays: bool) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    await alice.post(f"/groups/{group}/commit", group_info=encode(stored))
    await way(alice, bob, group, new)
    assert await alice.group_info(group) == (stored if stays else new)
    assert [each.body for each in await alice.fetch(group)] == [b"commit"], "what else it brings counts all the same"


async def test_without_a_commit_one_of_the_same_epoch_replaces_it(running: Running) -> None:
    """Clients mend it so."""
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    for new in (info(7), info(7) + b" mended"):
        await alice.post(f"/groups/{group}/commit", group_info=encode(new))
        assert await alice.group_info(group) == new


@pytest.mark.parametrize("kind", [Client, ProtobufClient])
async def test_of_two_who_come_in_by_one_group_info_the_second_is_refused(running: Running, kind: type[Client]) -> None:
    alice, bob, carol = [await kind.register(running.http, running.url, each) for each in ("alice", "bob", "carol")]
    group = await alice.create_group("friends")
    await alice.post(f"/groups/{group}/commit", group_info=encode(info(7)))
    for each in (bob, carol):
        await each.begin_join(group)

    def joins(who: Client, epoch: int) -> Awaitable[object]:
        name = who.user_id.encode()
        brought = {"commit_message": encode(name), "group_info": encode(info(epoch) + name)}
        return who.post(f"/groups/{group}/external-join", **brought)

    await joins(bob, 8)
    for epoch in (8, 7):
        await expect(joins(carol, epoch), 409, 301)
    assert await alice.group_info(group) == info(8) + bob.user_id.encode()
    await joins(carol, 9)
    assert [each.body for each in await alice.fetch(group)] == [bob.user_id.encode(), carol.user_id.encode()]
    assert await alice.group_info(group) == info(9) + carol.user_id.encode()
