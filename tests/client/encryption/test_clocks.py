"""Devices whose machines have a wrong clock."""

import time

import pytest

from conclave.client.events import ClockDiffers
from conclave.clock import FakeClock
from tests.client.encryption.conftest import NewDevice
from tests.client.encryption.devices import agree, talk

DAY = 86_400


@pytest.mark.parametrize("who", ["alice", "bob"])
@pytest.mark.parametrize("off", [100 * DAY, 3 * DAY, -2 * DAY, -100 * DAY, None])
async def test_one_invites_the_other_and_both_talk(device: NewDevice, who: str, off: int | None) -> None:
    """Lifetimes of key packages go by the server's time. ``off``: None: the clock has started at 1970."""
    now = int(time.time())
    wrong = FakeClock(now + off if off else 1_000)
    alice, bob = [await device(each, clock=wrong if each == who else FakeClock(now)) for each in ("alice", "bob")]
    group = await alice.sync.membership.create("club")
    await alice.sync.membership.invite(group, "bob")
    await agree(group, alice, bob)
    await talk(group, alice, bob)
    found = {each.name: each.all_told(ClockDiffers) for each in (alice, bob)}
    [told] = found.pop(who)
    assert abs(told.seconds - (wrong.now() - now)) < 60
    assert list(found.values()) == [[]]
