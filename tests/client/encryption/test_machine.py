"""Clients of one group, at random: they talk and change it, die at any step, miss answers, and it goes on.

Their files are put back from old copies, and the clocks of their machines are set.
"""

import asyncio
import itertools
import shutil
import tempfile
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from conclave.client import ClientError, MlsCodec
from conclave.client.encryption.view import EncryptionStatus
from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from tests.client.encryption.devices import Device, agree
from tests.client.encryption.failpoints import Failpoints
from tests.client.encryption.test_files import secrets
from tests.conftest import StartServer
from tests.support import sample
from tests.support.server import PATIENCE

pytestmark = pytest.mark.system

NAMES = ("alice", "bob", "carol", "dave", "erin", "frank")
"""Alice is an admin and stays; Bob begins as one."""
AFTERWARDS = 0.6
"""So many seconds each client goes on after its action, unless it has died."""
PASSES = 0.3
"""By so many seconds the clients' clocks go forward between two looks, 0.1 seconds apart: nobody waits for real."""
T = TypeVar("T")


class Crash(BaseException):
    """A client died: nothing of it goes on."""


def crash() -> None:
    raise Crash


@dataclass(frozen=True)
class Act:
    """What somebody does. ``dies_at``: a step; ``loses``: the answer to a request. 0: none."""

    who: str
    what: str
    whom: str
    dies_at: int
    loses: int

    @property
    def goes(self) -> str:
        """Who is no member after it, if it is done."""
        return {"leave": self.who, "kick": self.whom}.get(self.what, "")


WHATS = [
    *("send", "send", "send", "send", "rotate", "invite", "accept", "join", "kick", "leave", "stop", "restart"),
    *("copy", "restore", "clock"),
]
OFF = [-400 * 86_400, -3 * 86_400, -7_200, 7_200, 3 * 86_400, 400 * 86_400]
"""By so many seconds the clock of a machine is set."""
faults = st.sampled_from([(0, 0), (0, 0), (1, 0), (0, 1)]).flatmap(
    lambda which: st.tuples(
        st.integers(1, 40) if which[0] else st.just(0), st.integers(1, 8) if which[1] else st.just(0)
    )
)
acts = st.builds(
    lambda who, what, whom, fault: Act(who, what, whom, *fault),
    st.sampled_from(NAMES),
    st.sampled_from(WHATS),
    st.sampled_from(NAMES[1:]),
    faults,
).filter(lambda act: act.goes != NAMES[0])


class Machine(RuleBasedStateMachine):
    """One group at a server. ``must_read``: who has to have read which text once all is settled.

    ``gone``: who left, or was removed perhaps, since all was settled. ``seen``: secrets that a client has had.
    """

    start: StartServer

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.must_read: dict[str, set[str]] = {}
        self.sender: dict[str, str] = {}
        self.gone: set[str] = set()
        self.seen: dict[str, set[bytes]] = {name: set() for name in NAMES}
        self.numbers = itertools.count(1)
        self.has_failed = False
        self.does(self._begin())

    def does(self, doing: Coroutine[Any, Any, T]) -> T:
        try:
            return self.loop.run_until_complete(doing)
        except BaseException:
            self.has_failed = True
            raise

    async def _begin(self) -> None:
        self.stack = AsyncExitStack()
        folder = Path(self.folder.name)
        config = Config(database_path=str(folder / "hot.db"), cleanup=CleanupConfig(disk_reserve=0))
        running = await self.stack.enter_async_context(type(self).start(config))
        self.devices = {name: Device(running.url, name, folder, FakeClock(int(time.time()))) for name in NAMES}
        for each in self.devices.values():
            each.takes_invites, each.hears_time = False, True
            self.stack.push_async_callback(each.end)
            await each.begin()
            await each.connect()
        alice, bob, *_ = self.devices.values()
        self.group = await alice.sync.membership.create("club", public=True)
        await bob.sync.membership.join(self.group)
        await agree(self.group, alice, bob)
        await alice.client.promote(self.group, bob.user_id)

    def teardown(self) -> None:
        try:
            if not self.has_failed:
                self.does(self._settle())
        finally:
            self.loop.run_until_complete(self.stack.aclose())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            self.folder.cleanup()

    # What happens

    @rule(first=acts, second=st.none() | acts)
    def act(self, first: Act, second: Act | None) -> None:
        """Have one do something, or two at the same moment."""
        both = [first, second] if second and second.who != first.who else [first]
        self.does(self._act(both))

    @rule()
    def settle(self) -> None:
        self.does(self._settle())

    async def _act(self, acts: list[Act]) -> None:
        for name in {each.goes for each in acts} - {""}:
            self._goes(name)
        keyed = {name for name in NAMES if name not in self.gone and self._has_keys(name)}
        await asyncio.gather(*(self._run(each, keyed) for each in acts))
        self._note_secrets()

    def _goes(self, name: str) -> None:
        """Note that nobody relies any more on what was sent to or by somebody who may be gone."""
        self.gone.add(name)
        for text, readers in self.must_read.items():
            readers.discard(name)
            if self.sender[text] == name:  # what came too late is sent anew by its sender only
                readers.clear()

    def _has_keys(self, name: str) -> bool:
        """Tell whether somebody has the keys, as the file says if the program does not run."""
        device = self.devices[name]
        if device.is_running:
            return device.is_in(self.group)
        with MlsCodec(device.keys_path, device.user_id) as codec:
            return codec.view(self.group).status is EncryptionStatus.ENCRYPTED

    async def _run(self, act: Act, keyed: set[str]) -> None:
        """Do it, and go on for a moment, until it is done or its client has died."""
        device, points = self.devices[act.who], Failpoints(crash, act.dies_at, act.loses)
        doing = asyncio.create_task(self._do(act, device, points, keyed))
        while not doing.done() and not points.is_dead:
            await asyncio.wait({doing}, timeout=0.1)
            device.ahead += PASSES
        if points.is_dead:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)
            await device.stop()
        else:
            doing.result()
        points.disarm()

    async def _do(self, act: Act, device: Device, points: Failpoints, keyed: set[str]) -> None:
        if act.what in ("stop", "restart", "copy", "restore"):
            await device.stop()
        if act.what == "stop":
            return
        if act.what == "copy":
            self._copy(device)
        elif act.what == "restore":
            self._restore(device)
        elif act.what == "clock":
            assert isinstance(device.clock, FakeClock)
            device.clock.set_wrong(OFF[next(self.numbers) % len(OFF)])
        if not device.is_running:
            await device.connect(points)
        else:
            points.arm(device.client, device.codec, device.history)
        with suppress(ClientError):  # as their users would see
            await self._perform(act, device, keyed)
        await asyncio.sleep(AFTERWARDS)

    def _copy(self, device: Device) -> None:
        for each in device.folder.glob(f"{device.name}.*"):
            shutil.copy(each, self._copies(device) / each.name)

    def _restore(self, device: Device) -> None:
        """Put a copy back. What was sent since then nobody can send again, and what is read anew may be unreadable."""
        copied = [*self._copies(device).iterdir()]
        if not copied:
            return
        self._goes(device.name)
        self.seen[device.name].clear()
        for each in device.folder.glob(f"{device.name}.*"):
            each.unlink()
        for each in copied:
            shutil.copy(each, device.folder / each.name)

    def _copies(self, device: Device) -> Path:
        folder = device.folder / f"copies of {device.name}"
        folder.mkdir(exist_ok=True)
        return folder

    async def _perform(self, act: Act, device: Device, keyed: set[str]) -> None:
        group, membership = self.group, device.sync.membership
        match act.what:
            case "send" if device.is_in(group):
                text = f"{act.who} says {next(self.numbers)}"
                self.sender[text] = act.who
                await device.sync.send(group, text)
                self.must_read[text] = set() if act.who in self.gone else keyed - self.gone
            case "rotate" if device.is_in(group):
                await device.renew(group)
            case "invite":
                await membership.invite(group, act.whom)
            case "accept":
                for invite in await device.client.invites():
                    await device.client.accept_invite(invite.invite_id)
            case "join" if not await device.client.groups():
                await membership.join(group)
            case "kick":
                await membership.remove(group, self.devices[act.whom].user_id)
            case "leave":
                await device.sync.leave(group)

    def _note_secrets(self) -> None:
        for name, device in self.devices.items():
            record = device.codec.record(self.group) if device.is_running else None
            if record and record.group:
                self.seen[name] |= secrets(record.group)

    # What has to be

    async def _settle(self) -> None:
        for each in self.devices.values():
            if not each.is_running:
                await each.connect()
        [group] = await self.devices["alice"].client.groups()
        ids = {each.user_id for each in group.members}
        members = {name: device for name, device in self.devices.items() if device.user_id in ids}
        await self._until_right(members, ids)
        last = {name: f"{name} says {next(self.numbers)}, the last" for name in members}
        for name, device in members.items():
            self.sender[last[name]] = name
            await device.sync.send(self.group, last[name])
            self.must_read[last[name]] = set(members)
        await self._until_right(members, ids)
        for name, device in members.items():
            shown = device.shown(self.group)
            assert [text for text in self.sender if shown.count(text) > 1] == [], f"{name} has read it twice"
        self._note_secrets()
        for name in NAMES:
            self._check_files(name)
        self.must_read.clear()
        self.gone.clear()

    async def _until_right(self, members: dict[str, Device], ids: set[UUID]) -> None:
        """Wait until all members are in one epoch, and have read what they have to."""
        deadline = self.loop.time() + PATIENCE
        while wrong := self._wrong(members, ids):
            assert self.loop.time() < deadline, wrong
            for device in members.values():
                device.ahead += PASSES
                device.sync.request_fetch(self.group)
            await asyncio.sleep(0.1)
            for device in self.devices.values():
                device.check()

    def _wrong(self, members: dict[str, Device], ids: set[UUID]) -> str:
        """Say what is not right yet; "" if all is."""
        for name, device in self.devices.items():
            if name not in members and device.codec.record(self.group):
                return f"{name} has keys, and is no member"
        if waiting := [name for name, device in members.items() if not device.is_in(self.group)]:
            return f"{waiting} have no keys"
        states = {name: device.mls(self.group) for name, device in members.items()}
        if len({each.epoch_authenticator for each in states.values()}) > 1:
            return f"they are in epochs { ({name: each.epoch for name, each in states.items()}) }"
        leaves = sorted(each.credential.identity for each in states["alice"].members().values())
        if leaves != sorted(each.bytes for each in ids):
            return "the tree has others than the server's list"
        for text, readers in self.must_read.items():
            for name in readers:
                if text not in self.devices[name].shown(self.group):
                    return f"{name} has not read {text!r}"
        again = [name for name, device in members.items() if device.codec.pending_resends()]
        return f"{again} have to send something again" if again else ""

    def _check_files(self, name: str) -> None:
        """Look for keys that are used up in a client's files."""
        device = self.devices[name]
        record = device.codec.record(self.group)
        live = secrets(record.group) if record and record.group else set()
        live |= {
            each
            for own in device.codec._own_keys.stored_packages()
            for each in (own.init_private, own.encryption_private, own.signature_private)
        }
        content = b"".join(each.read_bytes() for each in device.folder.glob(f"{name}.*"))
        assert [each for each in self.seen[name] - live if each in content] == [], f"{name} has used keys"


def test_a_group_whose_clients_die_at_random_goes_on_and_loses_nothing(
    start_server: StartServer,
) -> None:
    machine = type("Clients", (Machine,), {"start": staticmethod(start_server)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=sample.amount(200, 4),
            stateful_step_count=12,
            database=None,
            phases=[Phase.generate],  # what happens depends on the order of answers too: nothing to make smaller
            suppress_health_check=list(HealthCheck),
        ),
    )
