"""Synchronises the server's clock, the stored time and the clock's health."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Concatenate, ParamSpec, TypeVar

from conclave.auth.tokens import SessionActivity
from conclave.clock import Reading
from conclave.clock.steady import Floor, SteadyClock
from conclave.errors import UntrustedClockError
from conclave.health.parts import Health, HealthPart
from conclave.logs.setup import get_logger
from conclave.retention import marks
from conclave.retention.resolve import PolicySettings
from conclave.store.engine.database import Database
from conclave.store.engine.faults import StoreError
from conclave.store.resources import state
from conclave.store.resources.state import ClockState, StartResult

log = get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class ClockWatch:
    """Stores the time regularly, and handles clock faults that this or another process has found."""

    def __init__(self, clock: SteadyClock, store: Database, health: Health, activity: SessionActivity) -> None:
        """``begin`` sets ``clock`` and ``health``. ``activity``: its times are corrected together with the clock."""
        self._clock = clock
        self._store = store
        self._health = health
        self._activity = activity
        self._clock_state = ClockState()

    async def begin(self, policy: PolicySettings, *, accepts_change: bool = False) -> None:
        """Start serving with ``policy``. Raises PolicyFrozenError and PolicyChangeError.

        ``accepts_change``: see ``begin_serving``.
        """
        start_result = await self._store.write(
            state.begin_serving, policy, self._clock.read(), accepts_change=accepts_change
        )
        _log_policy_change(start_result, policy)
        await self.record()

    async def record(self, *, stopping: bool = False) -> None:
        """Store the current time, and the pending marks of earlier policies. ``stopping``: the server is stopping."""
        reading, former_policies = self._clock.read(), self._store.former_policies
        unmarked = former_policies.unmarked
        clock_state = await self._store.write(_record_time, reading, self._clock.floor, unmarked, stopping=stopping)
        former_policies.marked(unmarked)
        self._clock.resume(clock_state.floor, None if clock_state.fault else reading)
        if clock_state.floor.acceptances != self._clock_state.floor.acceptances:
            self._activity.clamp(self._clock.now())
            former_policies.forget()
        self._clock_state = clock_state
        self._report_fault(clock_state.fault)

    async def try_record(self) -> None:
        """Run ``record``, but ignore errors of the store: the next interval retries."""
        with suppress(StoreError):
            await self.record()

    async def check(self) -> None:
        """Check whether another process has changed the clock's state by a run, a fault or an acceptance."""
        if await self._store.read(state.clock_state) != self._clock_state:
            await self.record()

    async def write(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` as ``Database.write`` does. If it detects a wrong clock, store the fault.

        The fault is stored even though the changes of ``fn`` are rolled back. Raises the errors of ``Database.write``.
        """
        async with self.recording_faults():
            return await self._store.write(fn, *args, **kwargs)

    @asynccontextmanager
    async def recording_faults(self) -> AsyncIterator[None]:
        """Store the fault if the block detects a wrong clock."""
        try:
            yield
        except UntrustedClockError as error:
            await self._store.write(state.note_clock_fault, error.fault, self._clock_state.floor.acceptances)
            await self.record()
            raise

    def _report_fault(self, fault: str) -> None:
        """Report a clock fault to health, or clear it."""
        if fault and HealthPart.CLOCK not in self._health.faults:
            log.error("clock_wrong", fault=fault, remedy="conclave cleanup run --accept-clock")
            self._health.set_fault(HealthPart.CLOCK, fault)
        elif not fault:
            self._health.clear_fault(HealthPart.CLOCK)


def _record_time(
    connection: sqlite3.Connection, clock: Reading, floor: Floor, unmarked: dict[int, int], *, stopping: bool
) -> ClockState:
    """Run ``state.note_alive``, and store the ``unmarked`` marks unless the clock was accepted in between."""
    clock_state = state.note_alive(connection, clock, floor, stopping=stopping)
    if clock_state.floor.acceptances == floor.acceptances:
        for group_key, before in unmarked.items():
            marks.hide_before(connection, group_key, before)
    return clock_state


def _log_policy_change(start_result: StartResult, policy: PolicySettings) -> None:
    """Log the policy settings that have changed since the last start, and the effect."""
    changed = policy.changes(start_result.former) if start_result.former else {}
    if not changed:
        return
    change = start_result.change
    log.info(
        "policy_changed",
        changed=changed,
        groups=change.groups,
        groups_erased_sooner=change.sooner,
        messages_hidden=change.messages,
        archived_hidden=change.archived,
        is_exact=change.is_exact,
    )
