"""Many who are invited accept within a few seconds, and write at once."""

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from conclave.client.events import EncryptionNotice
from tests.client.encryption.conftest import NewDevice
from tests.client.encryption.devices import Device, agree
from tests.conftest import MEMORY
from tests.support import sample
from tests.support.server import PATIENCE

pytestmark = pytest.mark.system

ALARMS = {"refused", "lost", "stranger", "replaced", "restored"}
CROWDS = [(1, 12), (1, 25), (2, 48)]
"""How many admins have invited how many people. The largest only where everything is done: all are in one process."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the files of all devices are: in memory if possible, since together they would wait for one disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as name:
        yield Path(name)


@pytest.mark.parametrize(("admins", "count"), CROWDS if sample.is_all() else sample.some(CROWDS[:2], 1, "crowds"))
async def test_all_come_into_one_epoch_and_each_text_reaches_all_who_were_there(
    folder: Path, device: NewDevice, admins: int, count: int
) -> None:
    group, inviters, guests = await invited(device, folder, admins, count)
    everyone, there = [*inviters, *guests], [*inviters]
    sent: dict[str, set[str]] = {}
    """By text, who has to read it."""

    async def accept(guest: Device, wait: float) -> None:
        await asyncio.sleep(wait)
        guest.takes_invites = True
        await guest.connect()
        await guest.comes_in(group)
        came_in.append(time.monotonic())
        if len(came_in) == count:
            await agree(group, *everyone)
            took = came_in[-1] - began, time.monotonic() - came_in[-1]
            sys.stdout.write(f"{count} came in within {took[0]:.1f} s, and were in one epoch {took[1]:.1f} s later\n")
        for turn in range(3):
            text = f"{guest.name} says {turn}"
            sent[text] = {each.name for each in there}
            await guest.sync.send(group, text)
            if turn == 0:
                there.append(guest)
            await asyncio.sleep(0.5)

    came_in = list[float]()
    began = time.monotonic()
    await asyncio.gather(*(accept(guest, sample.chance(guest.name).uniform(0, 2)) for guest in guests))
    await agree(group, *everyone)
    for each in everyone:
        text = f"{each.name} is here"
        await each.sync.send(group, text)
        sent[text] = {other.name for other in everyone}
    for text, readers in sent.items():
        for each in everyone:
            if each.name in readers:
                await each.hears(text)
                assert each.texts_told().count(text) == 1
    told = [(each.name, notice.kind) for each in everyone for notice in each.all_told(EncryptionNotice)]
    assert [each for each in told if each[1] in ALARMS] == []


async def invited(device: NewDevice, folder: Path, admins: int, count: int) -> tuple[UUID, list[Device], list[Device]]:
    """Return a group, its admins, and people who are invited and away."""
    inviters = [await device(f"admin{number}", folder=folder) for number in range(admins)]
    first = inviters[0]
    group = await first.sync.membership.create("club", public=True)
    for each in inviters[1:]:
        await each.sync.membership.join(group)
        await agree(group, first, each)
        await first.client.promote(group, each.user_id)
    guests = [await device(f"guest{number}", folder=folder) for number in range(count)]
    for number, guest in enumerate(guests):
        guest.takes_invites = False
        await guest.stop()
        async with asyncio.timeout(PATIENCE):
            await inviters[number % admins].sync.membership.invite(group, guest.name)
    return group, inviters, guests
