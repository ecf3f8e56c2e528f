"""A client that dies between any two steps of what it does: the group goes on by itself, with everybody in it."""

import asyncio
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from conclave.client import ClientError
from conclave.client.session import LoginSession
from tests.client.encryption.conftest import NewDevice
from tests.client.encryption.devices import Device, agree, talk
from tests.support import sample

pytestmark = pytest.mark.system


ROOT = Path(__file__).parents[3]
STEPS = range(1, 61)


class Dying:
    """Bob, whose program dies again and again."""

    def __init__(self, bob: Device) -> None:
        self.bob = bob
        self.session_path = bob.folder / "bob.session"
        session: LoginSession = bob.client.session
        session.save(self.session_path)
        self.deaths = 0
        self.acknowledged = 0

    async def dies(self, step: int, action: str, *rest: str) -> bool:
        """Run until the n-th step; False if there are fewer."""
        arguments = [str(self.session_path), str(self.bob.folder), self.bob.name, str(step), action, *rest]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "tests.client.encryption.dying", *arguments),
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        said, _ = await process.communicate()
        code = process.returncode
        assert code in (0, -signal.SIGKILL)
        self.acknowledged += said.startswith(b"acknowledged")
        self.deaths += code != 0
        return code != 0


async def invite_at_last(dying: Dying, group: UUID) -> None:
    """Invite carol, if no invite was acknowledged: bob may have died each time before the server heard of one."""
    if not dying.acknowledged:
        with suppress(ClientError):  # or only before the answer came: then there is one
            await dying.bob.sync.membership.invite(group, "carol")


@pytest.mark.parametrize("action", ["join", "renew", "send", "invite", "remove", "reset", "accept"])
async def test_a_client_that_dies_at_any_step_finds_its_way_back(device: NewDevice, action: str) -> None:
    alice, bob, carol = await device("alice"), await device("bob"), await device("carol")
    group = await alice.sync.membership.create("club", public=True)
    chance = sample.chance(f"dies while it does {action}")
    is_in = action not in ("join", "accept")
    if is_in:
        await bob.sync.membership.join(group)
        await agree(group, alice, bob)
        await alice.client.promote(group, bob.user_id)
    if action == "remove":
        await carol.sync.membership.join(group)
        await agree(group, alice, bob, carol)
    await bob.stop()
    dying = Dying(bob)
    if action == "accept":
        await alice.sync.membership.invite(group, "bob")
    rest = {"invite": ["carol"], "remove": [str(carol.user_id)], "send": ["said by who died"]}.get(action, [])
    least = sample.amount(len(STEPS), 4)
    for count, step in enumerate(chance.sample(STEPS, len(STEPS))):
        if count >= least and dying.deaths:
            break  # not every step is on the way of every action
        await dying.dies(step, action, str(group), *rest)
        await alice.sync.send(group, f"after the death at {step}")
    assert dying.deaths
    await bob.connect()
    groups = {each.group_id: each for each in await alice.client.groups()}
    members = {each.user_id for each in groups[group].members}
    if action == "accept" and bob.user_id not in members:
        await bob.until_groups(1)
        members.add(bob.user_id)
    if bob.user_id not in members:
        await bob.sync.membership.join(group)
        members.add(bob.user_id)
    devices = [each for each in (alice, bob, carol) if each.user_id in members]
    if action == "invite":
        await invite_at_last(dying, group)
        await carol.until_groups(1)
        devices = [alice, bob, carol]
    await agree(group, *devices)
    await talk(group, *devices)
    if action == "send":
        assert alice.shown(group).count("said by who died") >= dying.acknowledged
        assert bob.shown(group) == [each for each in alice.shown(group) if each in bob.shown(group)]
