"""Purge jobs: which groups are purged how often. Pure functions.

The rules are those of the retention contract, section 2.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from conclave.retention.durations import duration_text
from conclave.retention.policy import AFTER_FETCH, KEEP, GroupPolicy

EVERYTHING = "everything"
"""The name of a run over all groups."""

HOUSEKEEPING = "housekeeping"
"""The name of a run over what belongs to every job."""


@dataclass(frozen=True)
class PurgeJob:
    """Purges the groups whose effective lifetime lies between two bounds. Times are in seconds; KEEP: no bound.

    ``shortest_max_lifetime``: exclusive. ``longest_max_lifetime``: inclusive. ``interval``: from the start of one run
    to that of the next.
    """

    interval: int
    shortest_max_lifetime: int = KEEP
    longest_max_lifetime: int = KEEP

    @property
    def name(self) -> str:
        """What operators call it: its bounds."""
        over = f"over {duration_text(self.shortest_max_lifetime)}" if self.shortest_max_lifetime != KEEP else ""
        up_to = f"up to {duration_text(self.longest_max_lifetime)}" if self.longest_max_lifetime != KEEP else ""
        return " ".join(filter(None, (over, up_to))) or EVERYTHING

    def covers(self, policy: GroupPolicy) -> bool:
        """Tell whether groups of this policy belong to the job by their lifetime.

        Delete-after-fetch counts as below everything, and a group that keeps its messages as above everything.
        """
        if policy.is_after_fetch:
            return self.shortest_max_lifetime == KEEP
        if policy.lifetime == KEEP:
            return self.longest_max_lifetime == KEEP
        longest = self.longest_max_lifetime
        return self.shortest_max_lifetime < policy.lifetime and (longest == KEEP or policy.lifetime <= longest)

    @property
    def covered(self) -> str:
        """The SQL condition, over the columns of a policy, for what ``covers`` tells."""
        after_fetch, kept = self.shortest_max_lifetime == KEEP, self.longest_max_lifetime == KEEP
        within = f"effective_expiry > {self.shortest_max_lifetime:d}"
        within += "" if kept else f" AND effective_expiry <= {self.longest_max_lifetime:d}"
        return f"CASE effective_expiry WHEN {AFTER_FETCH} THEN {after_fetch} WHEN {KEEP} THEN {kept} ELSE {within} END"


def gaps(jobs: Iterable[PurgeJob]) -> list[str]:
    """Return in words the lifetimes that belong to no job."""
    ordered = sorted(jobs, key=lambda job: job.shortest_max_lifetime)
    if not ordered:
        return []
    reached = ordered[0].shortest_max_lifetime
    found = []
    if reached != KEEP:
        found.append("delete-after-fetch" + (f", and lifetimes{_between(0, reached)}" if reached else ""))
    for job in ordered:
        if job.shortest_max_lifetime > reached:
            found.append(f"lifetimes{_between(reached, job.shortest_max_lifetime)}")
        if job.longest_max_lifetime == KEEP:
            return found
        reached = max(reached, job.longest_max_lifetime)
    return [*found, f"lifetimes over {duration_text(reached)}"]


def _between(over: int, up_to: int) -> str:
    return (f" over {duration_text(over)}," if over else "") + f" up to {duration_text(up_to)}"


@dataclass(frozen=True)
class Scope:
    """What one run does: which groups it purges by their lifetime, and whether it does the housekeeping.

    ``job``: None for no groups by their lifetime. A group in which something is past a mark, and a deleted one, belong
    to every run. Housekeeping: dead sessions and invites, moves to the archive, receipts that are too old.
    """

    name: str
    job: PurgeJob | None
    keeps_house: bool

    def covers(self, policy: GroupPolicy) -> bool:
        """Tell whether groups of this policy belong to the run by their lifetime."""
        return self.job is not None and self.job.covers(policy)

    @property
    def covered(self) -> str:
        """The SQL condition, over the columns of a policy, for what ``covers`` tells."""
        return self.job.covered if self.job else "FALSE"


ALL = Scope(EVERYTHING, PurgeJob(1), keeps_house=True)
"""Everything: what a run does if there are no purge jobs, and one that an operator starts."""


def schedule(jobs: Sequence[PurgeJob], cleanup_interval: int) -> list[tuple[Scope, int]]:
    """Return what the worker does and how often: each scope, and the seconds from run to run."""
    if not jobs:
        return [(ALL, cleanup_interval)]
    house = Scope(HOUSEKEEPING, None, keeps_house=True)
    return [(house, cleanup_interval), *((Scope(job.name, job, keeps_house=False), job.interval) for job in jobs)]


class Next(NamedTuple):
    """What is done next: the place of a job, and when it is due."""

    place: int
    due: float


class Timetable:
    """When each of some jobs is due; the one that is due for longest comes next. Times: seconds of a monotonic clock.

    A job that failed is not left until its interval is over, which may be a year: nothing would be erased meanwhile.
    """

    def __init__(self, intervals: Sequence[int], again: int, now: float, due: Sequence[float] = ()) -> None:
        """Begin with all jobs due, or with each when ``due`` says, which is what another timetable had.

        ``again``: one that failed is due after so many seconds, or its interval if less.
        """
        self._intervals = intervals
        self._again = again
        self._due = list(due) or [now] * len(intervals)

    @property
    def due(self) -> Sequence[float]:
        """When each job is due."""
        return tuple(self._due)

    def next(self) -> Next:
        """Return what is done next."""
        place = min(range(len(self._due)), key=self._due.__getitem__)
        return Next(place, self._due[place])

    def begin(self, place: int, now: float) -> None:
        """Note that a job begins: it is due again an interval after it was due, and not before it began."""
        self._due[place] = max(self._due[place] + self._intervals[place], now)

    def fail(self, place: int, now: float) -> None:
        """Note that a job has failed."""
        self._due[place] = min(self._due[place], now + self._again)
