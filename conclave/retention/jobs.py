"""Schedules purge jobs: which groups are purged, and how often. Pure functions.

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
"""The name of a run that does only the work that belongs to no purge job."""


@dataclass(frozen=True)
class PurgeJob:
    """A job that purges the groups whose effective lifetime is between two bounds. Times: seconds; KEEP: no bound.

    ``shortest_max_lifetime``: exclusive. ``longest_max_lifetime``: inclusive. ``interval``: from the start of one run
    to that of the next.
    """

    interval: int
    shortest_max_lifetime: int = KEEP
    longest_max_lifetime: int = KEEP

    @property
    def name(self) -> str:
        """Its bounds in words, or EVERYTHING."""
        over = f"over {duration_text(self.shortest_max_lifetime)}" if self.shortest_max_lifetime != KEEP else ""
        up_to = f"up to {duration_text(self.longest_max_lifetime)}" if self.longest_max_lifetime != KEEP else ""
        return " ".join(filter(None, (over, up_to))) or EVERYTHING

    def covers(self, policy: GroupPolicy) -> bool:
        """Return whether the job covers groups with this policy, by their lifetime.

        Delete-after-fetch counts as the shortest lifetime, keeping messages for ever as the longest.
        """
        if policy.is_after_fetch:
            return self.shortest_max_lifetime == KEEP
        if policy.lifetime == KEEP:
            return self.longest_max_lifetime == KEEP
        longest = self.longest_max_lifetime
        return self.shortest_max_lifetime < policy.lifetime and (longest == KEEP or policy.lifetime <= longest)

    @property
    def covered(self) -> str:
        """The SQL condition that equals ``covers``, over the columns of a policy."""
        has_after_fetch, has_keep = self.shortest_max_lifetime == KEEP, self.longest_max_lifetime == KEEP
        within = f"effective_expiry > {self.shortest_max_lifetime:d}"
        within += "" if has_keep else f" AND effective_expiry <= {self.longest_max_lifetime:d}"
        special = f"WHEN {AFTER_FETCH} THEN {has_after_fetch} WHEN {KEEP} THEN {has_keep}"
        return f"CASE effective_expiry {special} ELSE {within} END"


def gaps(jobs: Iterable[PurgeJob]) -> list[str]:
    """Return, in words, the lifetimes that no job covers."""
    ordered = sorted(jobs, key=lambda job: job.shortest_max_lifetime)
    if not ordered:
        return []
    covered_to = ordered[0].shortest_max_lifetime
    uncovered = []
    if covered_to != KEEP:
        uncovered.append("delete-after-fetch" + (f", and lifetimes{_between(0, covered_to)}" if covered_to else ""))
    for job in ordered:
        if job.shortest_max_lifetime > covered_to:
            uncovered.append(f"lifetimes{_between(covered_to, job.shortest_max_lifetime)}")
        if job.longest_max_lifetime == KEEP:
            return uncovered
        covered_to = max(covered_to, job.longest_max_lifetime)
    return [*uncovered, f"lifetimes over {duration_text(covered_to)}"]


def _between(over: int, up_to: int) -> str:
    return (f" over {duration_text(over)}," if over else "") + f" up to {duration_text(up_to)}"


@dataclass(frozen=True)
class Scope:
    """The scope of one run: which groups it purges by their lifetime, and whether it does the housekeeping.

    ``job``: None selects no groups by their lifetime. Groups with messages past a mark, and deleted groups, belong to
    every run. Housekeeping: expired sessions and invites, moves to the archive, and old receipts.
    """

    name: str
    job: PurgeJob | None
    is_housekeeping: bool

    def covers(self, policy: GroupPolicy) -> bool:
        """Return whether the run covers groups with this policy, by their lifetime."""
        return self.job is not None and self.job.covers(policy)

    @property
    def covered(self) -> str:
        """The SQL condition that equals ``covers``, over the columns of a policy."""
        return self.job.covered if self.job else "FALSE"


ALL = Scope(EVERYTHING, PurgeJob(1), is_housekeeping=True)
"""The scope of runs without purge jobs, and of those that an operator starts."""


def schedule(jobs: Sequence[PurgeJob], cleanup_interval: int) -> list[tuple[Scope, int]]:
    """Return the scopes that the worker runs, each with its interval in seconds."""
    if not jobs:
        return [(ALL, cleanup_interval)]
    housekeeping = Scope(HOUSEKEEPING, None, is_housekeeping=True)
    return [
        (housekeeping, cleanup_interval),
        *((Scope(job.name, job, is_housekeeping=False), job.interval) for job in jobs),
    ]


class NextJob(NamedTuple):
    """The position of the next job in the timetable, and when it is due."""

    position: int
    due: float


class Timetable:
    """When each job is due; the most overdue job comes next. Times: seconds of a monotonic clock.

    A failed job is retried before its interval is over, which may be a year.
    """

    def __init__(self, intervals: Sequence[int], retry_after: int, now: float, due: Sequence[float] = ()) -> None:
        """Start with all jobs due ``now``, or at the times ``due`` of a former timetable.

        ``retry_after``: the seconds after which a failed job is due again, or after its interval if that is shorter.
        """
        self._intervals = intervals
        self._retry_after = retry_after
        self._due = list(due) or [now] * len(intervals)

    @property
    def due(self) -> Sequence[float]:
        """When each job is due."""
        return tuple(self._due)

    def next(self) -> NextJob:
        """Return the next job."""
        index = min(range(len(self._due)), key=self._due.__getitem__)
        return NextJob(index, self._due[index])

    def begin(self, index: int, now: float) -> None:
        """Record that a job starts: it is due again one interval after it was due, but not before ``now``."""
        self._due[index] = max(self._due[index] + self._intervals[index], now)

    def fail(self, index: int, now: float) -> None:
        """Record that a job failed."""
        self._due[index] = min(self._due[index], now + self._retry_after)
