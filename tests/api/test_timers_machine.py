"""Self-destructing messages against a plain telling: whatever happens, each reader sees what that reader may see."""

import asyncio
import base64
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from conclave import app_keys
from conclave.actions import holds
from conclave.actions.command_runner import CommandRunner
from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention import rules, visibility
from conclave.store.resources import timers
from spark.environment import RunEnvironment
from spark.run import clean_up
from tests.conftest import Running, StartServer
from tests.support import sample
from tests.support.client import Client
from tests.support.forensics import StoreSearch

HOUR, DAY = 3600, 86_400
MAX_AGES = (2 * HOUR, 4 * HOUR)
NAMES = ("alice", "bob", "carol")
who = st.sampled_from(NAMES)


@dataclass
class Sent:
    """A message as the telling knows it. ``readers``: who was a member and has been since. ``ends``: their timers'."""

    sender: str
    seconds: int
    created_at: int
    readers: set[str]
    ends: dict[str, int] = field(default_factory=dict)
    ended: bool = False
    erased: bool = False


class Machine(RuleBasedStateMachine):
    """One group, whose admin never leaves, and two others who come and go."""

    start: StartServer
    clock: FakeClock

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.search = StoreSearch()
        self.max_age, self.expiry, self.hidden_before, self.hold = MAX_AGES[0], -1, 0, 0
        self.sent: dict[int, Sent] = {}
        self.members = set(NAMES)
        self.banned: set[str] = set()
        self.last = 0
        self.does(self._open())
        self.does(self._begin())

    def does(self, doing: Any) -> Any:
        return self.loop.run_until_complete(doing)

    @property
    def config(self) -> Config:
        return Config(
            database_path=str(Path(self.folder.name) / "hot.db"),
            cleanup=CleanupConfig(engine="sql", disk_reserve=0),
            retention=RetentionConfig(self_destruct_max_age=self.max_age),
        )

    async def _open(self) -> None:
        self.server = AsyncExitStack()
        self.running: Running = await self.server.enter_async_context(
            type(self).start(self.config, accepts_change=True)
        )

    async def _begin(self) -> None:
        self.users = dict(zip(NAMES, await self.running.users(*NAMES), strict=True))
        self.group = await self.users["alice"].create_group("friends")
        for name in NAMES[1:]:
            await self.users[name].join(self.group)

    def teardown(self) -> None:
        self.does(self.server.aclose())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.folder.cleanup()

    def now(self) -> int:
        return type(self).clock.now()

    # What happens.

    @rule(name=who, seconds=st.sampled_from([0, 60, 60, HOUR, 3 * HOUR]))
    def send(self, name: str, seconds: int) -> None:
        if name not in self.members:
            return
        number = self.last + 1
        self.does(self.users[name].send(self.group, self.search.body(number, 600), seconds))
        self.last = number
        self.sent[number] = each = Sent(name, seconds, max(self.now(), self.hidden_before), set(self.members))
        if seconds:
            each.ends[name] = self.now() + seconds

    @rule(name=who, back=st.integers(0, 3))
    def read(self, name: str, back: int) -> None:
        up_to = self.last - back
        if name not in self.members or up_to < 1:
            return
        self.does(self.users[name].read(self.group, up_to))
        for number, each in self.sent.items():
            if each.seconds and number <= up_to and name in each.readers and not self.is_too_old(number, self.now()):
                each.ends.setdefault(name, self.now() + each.seconds)

    @rule(name=st.sampled_from(NAMES[1:]), kind=st.sampled_from(["leave", "remove", "ban"]))
    def go(self, name: str, kind: str) -> None:
        if name not in self.members:
            return
        user = self.users[name]
        self.does(user.leave(self.group) if kind == "leave" else self.users["alice"].act(kind, self.group, user))
        self.members.remove(name)
        self.banned |= {name} if kind == "ban" else set()
        for each in self.sent.values():
            each.readers.discard(name)

    @rule(name=st.sampled_from(NAMES[1:]))
    def come(self, name: str) -> None:
        if name in self.members:
            return
        if name in self.banned:
            self.does(self.users["alice"].act("unban", self.group, self.users[name]))
            self.banned.remove(name)
        self.does(self.users[name].join(self.group))
        self.members.add(name)

    @rule(name=st.sampled_from(NAMES[1:]), kind=st.sampled_from(["leave", "remove", "ban"]))
    def go_and_come(self, name: str, kind: str) -> None:
        """Have somebody gone for no time: what was sent before is seen by that member no more."""
        self.go(name, kind)
        self.come(name)

    @rule(back=st.integers(0, 1))
    def all_read(self, back: int) -> None:
        for name in sorted(self.members):
            self.read(name, back)

    @rule(seconds=st.sampled_from([1, 1, 59, 60, 61, HOUR, 2 * HOUR]))
    def pass_time(self, seconds: int) -> None:
        type(self).clock.advance(seconds)

    @rule()
    def to_an_end(self) -> None:
        """Go to the second of some timer's end, and look at the one before it, too."""
        ends = sorted(end for each in self.sent.values() for end in each.ends.values() if end > self.now() + 1)
        if ends:
            type(self).clock.advance(ends[0] - 1 - self.now())
            self.sees()
            type(self).clock.advance(1)

    @rule(name=who, in_doubt=st.booleans())
    def read_too_late(self, name: str, *, in_doubt: bool) -> None:
        """Go to the last second at which some message may be read for the first time, and read it at the next.

        ``in_doubt``: by a fast clock, which is then set right: nor does a timer begin then.
        """
        ages = sorted(each.created_at + self.max_age for each in self.sent.values() if each.seconds)
        if later := [age for age in ages if age >= self.now()]:
            type(self).clock.advance(later[0] - self.now())
            self.sees()
            type(self).clock.advance(1)
            if in_doubt:
                self.read_in_doubt(name, 0, 2 * DAY)
            else:
                self.read(name, 0)

    @rule(name=who, back=st.integers(0, 3), seconds=st.sampled_from([2 * DAY, 2 * DAY, -2 * HOUR]))
    def read_in_doubt(self, name: str, back: int, seconds: int) -> None:
        """Have somebody read by a wrong clock, which is then set right and accepted."""
        up_to = self.last - back
        if name not in self.members or up_to < 1:
            return
        self.does(self.running.settle())  # a receipt in doubt counts for what was fetched before
        self.does(
            self.running.app[app_keys.CLOCK_WATCH].record()
        )  # as every few seconds: up to here the clock was right
        type(self).clock.set_wrong(seconds)
        self.does(self.users[name].read(self.group, up_to))
        type(self).clock.set_wrong(-seconds)
        for number, each in self.sent.items():
            if each.seconds and number <= up_to and name in each.readers and not self.is_too_old(number, self.now()):
                each.ends.setdefault(name, self.now() + each.seconds + min(0, seconds))
        self.clean_up(accept=True)
        self.to_an_end()

    @rule(seconds=st.integers(1, 5))
    def step_back(self, seconds: int) -> None:
        """Set the clock back a little: what has ended stays so, and so the telling's clock stands still."""
        self.sees()
        type(self).clock.set_wrong(-seconds)
        self.sees(at=self.now() + seconds)
        type(self).clock.set_wrong(seconds)

    @rule(expiry=st.sampled_from([-1, 30 * 60, 3 * HOUR]))
    def change_policy(self, expiry: int) -> None:
        self.does(self.users["alice"].set_expiry(self.group, expiry))
        if self.expiry > 0 and expiry != self.expiry:
            self.hidden_before = max(self.hidden_before, self.now() - self.expiry)
        self.expiry = expiry

    @rule(max_age=st.sampled_from(MAX_AGES))
    def restart(self, max_age: int) -> None:
        """Start anew, perhaps with another age: what was too old stays hidden."""
        self.does(self.server.aclose())
        if max_age != self.max_age:
            for each in self.sent.values():
                each.ended |= bool(each.seconds) and each.created_at + self.max_age < self.now()
        self.max_age = max_age
        self.does(self._open())
        for user in self.users.values():
            user.http, user.url = self.running.http, self.running.url

    @rule()
    def hold_or_release(self) -> None:
        outside = CommandRunner(self.config, type(self).clock)
        if self.hold:
            outside.write(holds.release, outside.context(), "operator root", self.hold)
            self.hold = 0
        else:
            covered = outside.read(holds.find_group, self.group)
            self.hold = outside.write(holds.add, outside.context(), "operator root", covered, "case").hold_id

    @precondition(lambda self: self.sent)
    @rule()
    def clean_up(self, *, accept: bool = False) -> None:
        """Do a run: what nobody sees any more is in no file, and all else is there. ``accept``: the clock."""
        self.does(self.running.settle())
        report = clean_up(RunEnvironment(self.config, type(self).clock), accept_clock=accept)
        assert not report.error
        if accept:
            self.does(self.running.app[app_keys.CLOCK_WATCH].check())  # as every second: the server learns of it
        if not self.hold:
            for number, each in self.sent.items():
                seen = any(self.sees_it(name, number, self.now()) for name in each.readers)
                each.erased |= self.is_over(number, self.now()) or (each.seconds > 0 and not seen)
        left = {number for number, each in self.sent.items() if not each.erased}
        assert self.search.numbers_in(Path(self.folder.name)) == left

    # What each sees.

    def is_over(self, number: int, now: int) -> bool:
        """Whether a message has expired for everybody."""
        created_at = self.sent[number].created_at
        return created_at < self.hidden_before or (self.expiry > 0 and created_at + self.expiry < now)

    def sees_it(self, name: str, number: int, now: int) -> bool:
        """Whether a member sees the body of a message that has not expired."""
        each = self.sent[number]
        if not each.seconds:
            return True
        if name not in each.readers:
            return False
        return each.ends[name] > now if name in each.ends else not self.is_too_old(number, now)

    def is_too_old(self, number: int, now: int) -> bool:
        """Whether nobody may see a message any more who has not read it."""
        each = self.sent[number]
        return each.ended or each.created_at + self.max_age < now

    @invariant()
    def sees(self, at: int | None = None) -> None:
        now = self.now() if at is None else at
        for name in sorted(self.members):
            expected = {
                number: self.sees_it(name, number, now)
                for number, each in self.sent.items()
                if not each.erased and not self.is_over(number, now)
            }
            assert self.does(self.seen(self.users[name])) == expected, name

    async def seen(self, client: Client) -> dict[int, bool]:
        """Whether somebody gets the body of each message that is listed."""
        path = f"/groups/{self.group}/messages"
        every = (await client.get(path, limit=500, include_redacted="true"))["messages"]
        plain = (await client.get(path, limit=500))["messages"]
        assert plain == [each for each in every if not each["redacted"]]
        for each in every:
            number, body = each["sequence_num"], base64.b64decode(each["mls_message"])
            assert body == (b"" if each["redacted"] else self.search.body(number, 600))
        return {each["sequence_num"]: not each["redacted"] for each in every}


def play(start_server: StartServer, clock: FakeClock, examples: int, **how: Any) -> None:
    machine = type("Timers", (Machine,), {"start": staticmethod(start_server), "clock": clock})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples, stateful_step_count=40, database=None, **how),
    )


@pytest.mark.system
def test_each_reader_sees_what_the_telling_says(start_server: StartServer, clock: FakeClock) -> None:
    play(start_server, clock, sample.amount(60, 8), derandomize=sample.is_all())


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "who came later sees it": lambda patch: patch.setattr(
        visibility, "_TIMED", visibility._TIMED.replace("sequence_num <= :joined_after", "FALSE")
    ),
    "it is seen for a second too long": lambda patch: patch.setattr(
        visibility, "_TIMED", visibility._TIMED.replace(rules.TIMER_END, "redact_at + 1")
    ),
    "receipts start nothing": lambda patch: patch.setattr(timers, "needs_noting", lambda *_: False),
    "what is too old can still be read": lambda patch: patch.setattr(timers, "MAX_AGE", str(1 << 60)),
    "it is erased before all have read it": lambda patch: patch.setattr(
        rules, "IS_REDACTED", rules.IS_REDACTED.replace(rules.UNREAD, "FALSE")
    ),
    "it is erased while a timer runs": lambda patch: patch.setattr(
        rules, "IS_REDACTED", rules.IS_REDACTED.replace("redact_at > :now", "FALSE")
    ),
}
"""Faults, and how each is planted."""


@pytest.mark.system
def test_a_planted_fault_is_found(start_server: StartServer, clock: FakeClock) -> None:
    for fault in sample.some(tuple(FAULTS), 1, "planted faults"):
        with pytest.MonkeyPatch.context() as patch:
            FAULTS[fault](patch)
            with pytest.raises((AssertionError, ExceptionGroup)):
                play(start_server, clock, 300, phases=[Phase.generate], derandomize=True)
