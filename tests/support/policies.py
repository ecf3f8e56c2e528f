"""The table of policies: what the operator and the admins of a group have set, and which policy follows.

Each row is a rule or a conflict of the retention contract, section 2. Other tests run the same rows on a store.
"""

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest

from conclave.retention.durations import MAX_SECONDS
from conclave.retention.policy import AFTER_FETCH, KEEP, GroupPolicy, Source
from conclave.retention.resolve import LifetimeLimits, LifetimeRange, Lifetimes, PolicySettings

HOUR, DAY = 3600, 86_400
WEEK, MONTH, YEAR = 7 * DAY, 30 * DAY, 365 * DAY

GROUP = UUID("0b6c2c52-3f0e-4d43-9d38-6f1f3a1b7a10")
"""The group that the overrides of the table name."""

ANOTHER = UUID("9f2d7f5e-0c11-4f0a-8a53-2f7b1d3c4e5f")
"""A group that is not the one of the table."""

OVERRIDE, OWN, DEFAULT, SERVER, NONE = Source.OVERRIDE, Source.GROUP, Source.DEFAULT, Source.SERVER, Source.NONE


@dataclass(frozen=True)
class Case:
    """A row: what is set, in seconds or KEEP, and the policy that follows from it."""

    sentence: str
    settings: PolicySettings
    own_max: int
    own_min: int
    lifetime: int
    min_lifetime: int
    hold_limit: int
    source: Source

    @property
    def policy(self) -> GroupPolicy:
        """The policy that has to follow."""
        settings = self.settings
        return GroupPolicy(
            self.lifetime,
            self.min_lifetime,
            self.hold_limit,
            keeps_commits=settings.retain_commits,
            erases=settings.enabled,
            source=self.source,
        )

    def settings_for(self, group_id: bytes) -> PolicySettings:
        """Return the settings with another group in the place of GROUP."""
        groups = {
            str(UUID(bytes=group_id)) if each == str(GROUP) else each: set_
            for each, set_ in self.settings.groups.items()
        }
        return replace(self.settings, groups=groups)


def settings(server: int = KEEP, **others: Any) -> PolicySettings:
    """Return settings with this ``message_retention``."""
    return PolicySettings(server, 2_592_000, 604_800, **others)


def override(
    server: int = KEEP, *, least: int = KEEP, longest: int = KEEP, of: UUID = GROUP, **others: Any
) -> PolicySettings:
    """Return settings with an override for one group."""
    return settings(server, groups={str(of): Lifetimes(least, longest)}, **others)


def default(server: int = KEEP, *, least: int = KEEP, longest: int = KEEP, **others: Any) -> PolicySettings:
    """Return settings with a default policy."""
    return settings(server, default_policy=Lifetimes(least, longest), **others)


def on_max(least: int = KEEP, most: int = KEEP) -> LifetimeLimits:
    """Return limits on max_lifetime."""
    return LifetimeLimits(max_lifetime=LifetimeRange(least, most))


def on_min(least: int = KEEP, most: int = KEEP) -> LifetimeLimits:
    """Return limits on min_lifetime."""
    return LifetimeLimits(min_lifetime=LifetimeRange(least, most))


BOTH = LifetimeLimits(min_lifetime=LifetimeRange(HOUR, 2 * DAY), max_lifetime=LifetimeRange(DAY, YEAR))
HELD: dict[str, Any] = {"fetch_hold_limit": MONTH}

_ROWS: list[tuple[str, PolicySettings, int, int, int, int, int, Source]] = [
    # The server and the group, as in the protocol's table.
    ("nothing is set: messages are kept", settings(), -1, -1, KEEP, 0, KEEP, NONE),
    ("the group's own lifetime counts", settings(), DAY, -1, DAY, 0, KEEP, OWN),
    ("the group's own mode counts", settings(), 0, -1, AFTER_FETCH, 0, KEEP, OWN),
    ("the server's lifetime counts where the group inherits", settings(DAY), -1, -1, DAY, 0, KEEP, SERVER),
    ("the shorter of both counts: the server's", settings(DAY), WEEK, -1, DAY, 0, KEEP, SERVER),
    ("the shorter of both counts: the group's", settings(WEEK), DAY, -1, DAY, 0, KEEP, OWN),
    ("where both are the same it is the group's own", settings(DAY), DAY, -1, DAY, 0, KEEP, OWN),
    ("a group at 0 under a positive server is delete-after-fetch", settings(DAY), 0, -1, 0, 0, KEEP, OWN),
    ("a server at 0 wins over a group that inherits", settings(0), -1, -1, 0, 0, KEEP, SERVER),
    ("a server at 0 wins over a group's own lifetime", settings(0), DAY, -1, 0, 0, KEEP, SERVER),
    ("both at 0", settings(0), 0, -1, 0, 0, KEEP, OWN),
    # The group's own min_lifetime.
    ("a group may set only a minimum: nothing expires", settings(), -1, DAY, KEEP, DAY, KEEP, NONE),
    ("a minimum of 0 is none", settings(), DAY, 0, DAY, 0, KEEP, OWN),
    ("a group may set both", settings(), WEEK, DAY, WEEK, DAY, KEEP, OWN),
    ("both may be the same", settings(), DAY, DAY, DAY, DAY, KEEP, OWN),
    ("a minimum only delays the erasure in delete-after-fetch", settings(), 0, DAY, 0, DAY, KEEP, OWN),
    (
        "a server's lifetime shorter than a group's minimum rules the expiry",
        settings(HOUR),
        *(-1, DAY, HOUR, DAY, KEEP, SERVER),
    ),
    # The default policy.
    ("the default counts for a group that inherits", default(longest=WEEK), -1, -1, WEEK, 0, KEEP, DEFAULT),
    ("the default does not count beside the group's own", default(longest=WEEK), DAY, -1, DAY, 0, KEEP, OWN),
    ("a group may keep longer than the default", default(longest=DAY), WEEK, -1, WEEK, 0, KEEP, OWN),
    ("the default does not count for a group at 0", default(longest=WEEK), 0, -1, 0, 0, KEEP, OWN),
    ("the default's minimum counts by itself", default(least=DAY), WEEK, -1, WEEK, DAY, KEEP, OWN),
    ("a default of only a minimum: nothing expires", default(least=DAY), -1, -1, KEEP, DAY, KEEP, NONE),
    ("the group's own minimum replaces the default's", default(least=DAY), WEEK, HOUR, WEEK, HOUR, KEEP, OWN),
    ("the group's own minimum of 0 replaces the default's", default(least=DAY), WEEK, 0, WEEK, 0, KEEP, OWN),
    (
        "the default's minimum above the group's maximum delays the erasure",
        default(least=WEEK),
        *(DAY, -1, DAY, WEEK, KEEP, OWN),
    ),
    ("both values of the default count", default(least=DAY, longest=YEAR), -1, -1, YEAR, DAY, KEEP, DEFAULT),
    ("the server's cap is shorter than the default", default(DAY, longest=WEEK), -1, -1, DAY, 0, KEEP, SERVER),
    ("the default is shorter than the server's cap", default(WEEK, longest=DAY), -1, -1, DAY, 0, KEEP, DEFAULT),
    ("the default is the server's cap", default(DAY, longest=DAY), -1, -1, DAY, 0, KEEP, DEFAULT),
    ("a server at 0 wins over the default", default(0, longest=DAY), -1, -1, 0, 0, KEEP, SERVER),
    # Clamping.
    ("a lifetime below its limit is raised", settings(limits=on_max(DAY, YEAR)), HOUR, -1, DAY, 0, KEEP, OWN),
    ("a lifetime above its limit is lowered", settings(limits=on_max(DAY, YEAR)), 2 * YEAR, -1, YEAR, 0, KEEP, OWN),
    ("a lifetime within its limits stays", settings(limits=on_max(DAY, YEAR)), WEEK, -1, WEEK, 0, KEEP, OWN),
    ("a lifetime at its lower limit stays", settings(limits=on_max(DAY, YEAR)), DAY, -1, DAY, 0, KEEP, OWN),
    ("a lifetime at its upper limit stays", settings(limits=on_max(DAY, YEAR)), YEAR, -1, YEAR, 0, KEEP, OWN),
    ("a lower limit alone raises", settings(limits=on_max(DAY)), HOUR, -1, DAY, 0, KEEP, OWN),
    ("a lower limit alone lowers nothing", settings(limits=on_max(DAY)), 9 * YEAR, -1, 9 * YEAR, 0, KEEP, OWN),
    ("an upper limit alone lowers", settings(limits=on_max(most=DAY)), WEEK, -1, DAY, 0, KEEP, OWN),
    ("an upper limit alone raises nothing", settings(limits=on_max(most=DAY)), 1, -1, 1, 0, KEEP, OWN),
    ("no limit creates an expiry", settings(limits=on_max(DAY, YEAR)), -1, -1, KEEP, 0, KEEP, NONE),
    ("the default is raised to its limit", default(longest=HOUR, limits=on_max(DAY)), -1, -1, DAY, 0, KEEP, DEFAULT),
    (
        "the default is lowered to its limit",
        default(longest=YEAR, limits=on_max(most=DAY)),
        *(-1, -1, DAY, 0, KEEP, DEFAULT),
    ),
    ("a minimum below its limit is raised", settings(limits=on_min(HOUR, DAY)), WEEK, 1, WEEK, HOUR, KEEP, OWN),
    ("a minimum above its limit is lowered", settings(limits=on_min(HOUR, DAY)), WEEK, 2 * DAY, WEEK, DAY, KEEP, OWN),
    ("a missing minimum takes its lower limit", settings(limits=on_min(HOUR, DAY)), WEEK, -1, WEEK, HOUR, KEEP, OWN),
    (
        "a missing minimum takes nothing from an upper limit",
        settings(limits=on_min(most=DAY)),
        *(WEEK, -1, WEEK, 0, KEEP, OWN),
    ),
    ("a minimum of 0 is raised to its limit too", settings(limits=on_min(HOUR)), WEEK, 0, WEEK, HOUR, KEEP, OWN),
    ("an upper limit of 0 forbids minimums", settings(limits=on_min(most=0)), WEEK, DAY, WEEK, 0, KEEP, OWN),
    ("the default's minimum is clamped", default(least=WEEK, limits=on_min(most=DAY)), YEAR, -1, YEAR, DAY, KEEP, OWN),
    ("a minimum is clamped where nothing expires", settings(limits=on_min(HOUR)), -1, -1, KEEP, HOUR, KEEP, NONE),
    (
        "where clamping makes them cross, the maximum rules the expiry and the minimum delays the erasure",
        settings(limits=LifetimeLimits(min_lifetime=LifetimeRange(WEEK), max_lifetime=LifetimeRange(max=DAY))),
        *(MONTH, -1, DAY, WEEK, KEEP, OWN),
    ),
    ("both are clamped", settings(limits=BOTH), 1, WEEK, DAY, 2 * DAY, KEEP, OWN),
    (
        "the server's cap is combined with the clamped value",
        settings(WEEK, limits=on_max(DAY)),
        *(HOUR, -1, DAY, 0, KEEP, OWN),
    ),
    (
        "the cap is the shorter after clamping",
        settings(WEEK, limits=on_max(most=MONTH)),
        *(YEAR, -1, WEEK, 0, KEEP, SERVER),
    ),
    (
        "the server's own lifetime is not clamped",
        settings(YEAR, limits=on_max(most=DAY)),
        *(-1, -1, YEAR, 0, KEEP, SERVER),
    ),
    # 0 is a mode.
    (
        "0 is not clamped, but the lower limit delays the erasure",
        settings(limits=on_max(DAY, YEAR)),
        *(0, -1, 0, DAY, KEEP, OWN),
    ),
    ("a server at 0 is delayed in the same way", settings(0, limits=on_max(DAY)), WEEK, -1, 0, DAY, KEEP, SERVER),
    ("the longer delay counts: the limit's", settings(limits=on_max(WEEK)), 0, DAY, 0, WEEK, KEEP, OWN),
    ("the longer delay counts: the minimum", settings(limits=on_max(DAY)), 0, WEEK, 0, WEEK, KEEP, OWN),
    ("a missing minimum takes its lower limit at 0 too", settings(limits=on_min(HOUR)), 0, -1, 0, HOUR, KEEP, OWN),
    ("an upper limit does not touch 0", settings(limits=on_max(most=DAY)), 0, -1, 0, 0, KEEP, OWN),
    ("the lower limit delays no erasure by age", settings(limits=on_max(DAY)), WEEK, -1, WEEK, 0, KEEP, OWN),
    # The hold limit.
    ("who does not fetch holds messages back for so long", settings(**HELD), 0, -1, 0, 0, MONTH, OWN),
    ("a server at 0 has the hold limit too", settings(0, **HELD), -1, -1, 0, 0, MONTH, SERVER),
    ("a group at 0 under a cap has the hold limit", settings(DAY, **HELD), 0, -1, 0, 0, MONTH, OWN),
    ("the hold limit is nothing to messages that expire by age", settings(**HELD), DAY, -1, DAY, 0, KEEP, OWN),
    ("the hold limit is nothing to messages that are kept", settings(**HELD), -1, -1, KEEP, 0, KEEP, NONE),
    ("the hold limit is not clamped", settings(limits=on_max(most=DAY), **HELD), 0, -1, 0, 0, MONTH, OWN),
    ("a delay may be longer than the hold limit", settings(limits=on_max(YEAR), **HELD), 0, -1, 0, YEAR, MONTH, OWN),
    # Overrides.
    ("an override counts where the group inherits", override(longest=MONTH), -1, -1, MONTH, 0, KEEP, OVERRIDE),
    ("an override counts before the group's own, if shorter", override(longest=DAY), WEEK, -1, DAY, 0, KEEP, OVERRIDE),
    ("an override counts before the group's own, if longer", override(longest=YEAR), DAY, -1, YEAR, 0, KEEP, OVERRIDE),
    ("an override counts before the group's own 0", override(longest=MONTH, **HELD), 0, -1, MONTH, 0, KEEP, OVERRIDE),
    ("an override counts before the server's 0", override(0, longest=MONTH), -1, -1, MONTH, 0, KEEP, OVERRIDE),
    ("an override counts before the server's cap", override(DAY, longest=YEAR), 0, -1, YEAR, 0, KEEP, OVERRIDE),
    ("an override may be below the server's lifetime", override(YEAR, longest=DAY), -1, -1, DAY, 0, KEEP, OVERRIDE),
    ("an override without fields keeps for ever", override(), DAY, DAY, KEEP, 0, KEEP, OVERRIDE),
    ("an override without fields keeps for ever under a server at 0", override(0), 0, -1, KEEP, 0, KEEP, OVERRIDE),
    ("an override of only a minimum keeps for ever", override(DAY, least=HOUR), WEEK, WEEK, KEEP, HOUR, KEEP, OVERRIDE),
    ("an override without a minimum has none", override(longest=WEEK), -1, DAY, WEEK, 0, KEEP, OVERRIDE),
    ("an override may have both", override(least=DAY, longest=WEEK), HOUR, HOUR, WEEK, DAY, KEEP, OVERRIDE),
    ("an override's minimum of 0 is none", override(least=0, longest=WEEK), -1, -1, WEEK, 0, KEEP, OVERRIDE),
    ("an override is not raised to a limit", override(longest=HOUR, limits=BOTH), -1, -1, HOUR, 0, KEEP, OVERRIDE),
    (
        "an override is not lowered to a limit",
        override(longest=9 * YEAR, limits=BOTH),
        *(-1, -1, 9 * YEAR, 0, KEEP, OVERRIDE),
    ),
    (
        "an override's minimum is not clamped",
        override(least=WEEK, longest=YEAR, limits=BOTH),
        *(-1, -1, YEAR, WEEK, KEEP, OVERRIDE),
    ),
    (
        "an override takes nothing from the default policy",
        override(least=KEEP, longest=KEEP, default_policy=Lifetimes(DAY, YEAR)),
        *(-1, -1, KEEP, 0, KEEP, OVERRIDE),
    ),
    (
        "an override of another group is nothing to this one",
        override(longest=DAY, of=ANOTHER),
        *(WEEK, -1, WEEK, 0, KEEP, OWN),
    ),
    # Bounds.
    (
        "the greatest lifetime is as any other",
        settings(),
        *(MAX_SECONDS, MAX_SECONDS, MAX_SECONDS, MAX_SECONDS, KEEP, OWN),
    ),
    (
        "the greatest lifetime is lowered to a limit",
        settings(limits=on_max(most=DAY)),
        *(MAX_SECONDS, -1, DAY, 0, KEEP, OWN),
    ),
    ("the greatest limit raises to it", settings(limits=on_max(MAX_SECONDS)), 1, -1, MAX_SECONDS, 0, KEEP, OWN),
    ("a second is the shortest lifetime", settings(), 1, 1, 1, 1, KEEP, OWN),
    # What concerns every policy.
    ("without erasure the policy stays as it is", settings(DAY, enabled=False), WEEK, HOUR, DAY, HOUR, KEEP, SERVER),
    (
        "an override without erasure stays as it is",
        override(longest=DAY, enabled=False),
        *(-1, -1, DAY, 0, KEEP, OVERRIDE),
    ),
    ("where commits are kept the policy stays as it is", settings(retain_commits=True), DAY, -1, DAY, 0, KEEP, OWN),
]  # fmt: skip

CASES = [Case(*row) for row in _ROWS]

policy_table = pytest.mark.parametrize("case", CASES, ids=[case.sentence for case in CASES])
"""Runs a test on every row of the table."""
