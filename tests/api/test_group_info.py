"""A group info is replaced by whatever brings one, but never by one of an earlier epoch of the same MLS group."""

from collections.abc import Awaitable, Callable

import pytest

from conclave.client.mls.codec import opaque, uint16, uint64
from tests.conftest import Running
from tests.support.client import Client, encode

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
        (info(7), info(7) + b" again", False),
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
