"""A server with its clients beside a plain model of it: what both say is compared.

After each step: what each member is served, and each watermark. After each run: what is stored in both tiers, what the
receipts say, and whether explain had said so before; in the hot tier a dry run, too.
"""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import UUID

from conclave.actions import explain
from conclave.archive import queries
from conclave.clock import FakeClock
from conclave.config.archive import ArchiveConfig
from conclave.config.cleanup import CleanupConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention.jobs import ALL, HOUSEKEEPING, PurgeJob, Scope
from conclave.retention.resolve import LifetimeLimits, LifetimeRange, Lifetimes
from conclave.store.engine import sqlite
from conclave.store.resources import receipts
from conclave.store.views import overdue
from conclave.store.views.explain import Explanation
from spark.environment import RunEnvironment
from spark.rehearsal import rehearse
from spark.run import clean_up
from tests.conftest import StartServer
from tests.support.alone import StoreAlone
from tests.support.archived import Tiers
from tests.support.cleaner import Cleaner
from tests.support.client import Client
from tests.support.governed import EVERYTHING, Bounds, Group, Member, Model, Rules
from tests.support.world import DisagreementError

HOUR, DAY = 3600, 86_400
JOBS: tuple[Bounds | None, ...] = (None, (-1, HOUR), (HOUR, 5 * HOUR), (5 * HOUR, -1))
"""The bounds of the purge jobs; None: housekeeping."""

ARCHIVE = ArchiveConfig(after=2 * HOUR, margin=0)
EXPLAINED, EXPLAINED_IN_ARCHIVE = 25, 4
"""At most 25 messages are explained before a run; 4 where each may open the archive."""

BEGIN = 1_700_000_000
NEVER = 1000 * 365 * DAY
"""No session ends while a history lasts."""


Served = tuple[int, int, bytes, int, int, int, bool]
"""A message as a member gets it: as of ``tests.support.alone.Told``, but for the sender, who is a number."""


@dataclass
class Seen:
    """What members were served after a step, by group; and the groups in delete-after-fetch, with their floors."""

    step: str
    served: dict[int, list[int]]
    floors: dict[int, int]


@dataclass
class Beside:
    """A server with its clients, beside the model. Users and groups are numbers.

    ``tier``: "hot"; or "archive", with runs by Spark that move messages there. ``extra``: how likely a run is before
    each step, beside those that are steps. ``runs``: whether runs are steps. ``favourite``: a step that is likelier.
    ``plant``: a fault for the process that does the runs of Spark. ``timers``: some messages destroy themselves.
    ``takes_back``: some are taken back.
    """

    start: StartServer
    config: Config
    clock: FakeClock
    cleaner: Cleaner
    seed: int
    tier: str = "hot"
    extra: float = 0.0
    runs: bool = True
    favourite: str = ""
    plant: str = ""
    timers: bool = False
    takes_back: bool = False
    told: list[str] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    erased: int = 0
    ran: int = 0

    def __post_init__(self) -> None:
        """Begin at a time that all histories have, so that twins have the same."""
        self.clock.seconds = BEGIN
        self.chance = random.Random(f"history {self.seed}")
        self.other = random.Random(f"runs {self.seed} {self.extra}")
        self.base = replace(
            self.config,
            token_ttl_seconds=NEVER,
            archive=ARCHIVE if self.tier == "archive" else ArchiveConfig(),
            cleanup=CleanupConfig(engine="spark" if self.tier == "archive" else "sql", disk_reserve=0),
        )
        self.model = Model(Rules(), self.clock.now())
        self.users: dict[int, Client] = {}
        self.ids: list[str] = []
        self.keys: dict[int, int] = {}
        self.sent: list[tuple[Group, int]] = []
        self.hidden: dict[int, set[int]] = {}
        self.holding: list[tuple[int, str, int]] = []
        self.receipts = 0
        self.server = AsyncExitStack()
        self.engines: list[RunEnvironment] = []
        self.count = 0
        self.user_ids: dict[int, str] = {}

    # The server.

    async def open(self) -> None:
        self.running = await self.server.enter_async_context(self.start(self.configured(), accepts_change=True))
        for client in self.users.values():
            client.http, client.url = self.running.http, self.running.url

    def configured(self) -> Config:
        """Write the rules as a configuration."""
        rules = self.model.rules
        retention = RetentionConfig(
            enabled=rules.enabled,
            default_policy=Lifetimes(*rules.default),
            limits=LifetimeLimits(LifetimeRange(*rules.on_least), LifetimeRange(*rules.on_longest)),
            groups={self.ids[place]: Lifetimes(*set_) for place, set_ in rules.overrides.items()},
            fetch_confirmation="next_fetch" if rules.next_fetch else "response",
            fetch_hold_limit=rules.hold_limit,
            retain_commits=rules.retain_commits,
            self_destruct_max_age=rules.max_age,
            admins_may_redact=rules.admins_may_redact,
            purge_jobs=tuple(PurgeJob(HOUR, *job) for job in JOBS if job),
        )
        return replace(self.base, message_retention=rules.server, retention=retention)

    @property
    def now(self) -> int:
        self.model.now = self.clock.now()
        return self.model.now

    @property
    def living(self) -> list[Group]:
        return [group for group in self.model.groups if not group.is_deleted]

    def _group(self) -> Group:
        return self.chance.choice(self.living)

    def _member(self, group: Group) -> int:
        return self.chance.choice(sorted(group.members))

    def _body(self, group: Group) -> bytes:
        self.count += 1
        return b"%d in %d" % (self.count, group.place)

    # Users and groups.

    async def register(self) -> None:
        user = len(self.user_ids)
        self.users[user] = await self.running.user(f"user_{user}")
        self.user_ids[user] = self.users[user].user_id

    async def create_group(self) -> None:
        """Have somebody create a group, which some others join."""
        place = len(self.ids)
        creator, *others = self.chance.sample(sorted(self.users), self.chance.randint(2, len(self.users)))
        self.ids.append(await self.users[creator].create_group(f"group_{place}"))
        group = Group(place, {creator: Member(is_admin=True)})
        self.model.groups.append(group)
        rows = await self.running.query("SELECT group_key FROM groups WHERE group_id = ?", UUID(self.ids[place]).bytes)
        self.keys[rows[0][0]] = place
        for other in others:
            await self.join(group, other)

    async def join(self, group: Group, user: int) -> None:
        await self.users[user].join(self.ids[group.place])
        self.model.join(group, user)

    # Runs.

    async def run(self, job: Bounds | None) -> None:
        await self.running.settle()
        await self._run(job)
        await self.compare("run")

    async def _run(self, job: Bounds | None) -> None:
        """Do a run, and compare what it leaves; it has to be what explain has said."""
        self.model.now = self.now
        self.told.append(f"run of {job} at {self.now}")
        before = self.model.stored()
        self.expect(self._stored(), before, "stored before the run")
        going = self._explained(before)
        marks = {group.place: group.gone_below for group in self.model.groups}
        is_exact = self.tier == "hot" or job == EVERYTHING
        erased = self.model.run(job, is_exact=is_exact)
        report = await asyncio.to_thread(self._clean, _scope(job))
        if report["error"]:
            raise DisagreementError(f"{report['error']}; {self.story()}")
        self.ran += 1
        gone = before - self._stored()
        if is_exact:
            self.expect(gone, erased.must, "erased")
        elif not erased.must <= gone <= erased.may:
            self.expect(gone, (erased.must, erased.may), "erased, must be and may be")
        if not is_exact:
            self._take_marks(marks)
        self._compare_explained(going, gone, job)
        self._compare_receipts(report, gone)
        self.model.erase(gone)
        self.erased += len(gone)
        self.expect(report["held"], self.model.kept_by_holds(), "kept by holds")
        if job == EVERYTHING:
            with closing(sqlite.connect(self.base.database, readonly=True)) as connection:
                self.expect(overdue.find(connection, self.now), {}, "overdue")

    def _take_marks(self, before: dict[int, int]) -> None:
        """Take the marks that are stored for those of the model, if they can be."""
        for key, place in self.keys.items():
            rows = self._query("SELECT gone_below FROM groups WHERE group_key = ?", key)
            group = self.model.groups[place]
            if rows and rows[0][0] in (before[place], group.gone_below):
                group.gone_below = rows[0][0]

    def _clean(self, scope: Scope) -> dict[str, Any]:
        config = self.configured()
        if self.tier == "archive":
            return self.cleaner.try_run(config, self.clock.now(), scope=scope, plant=self.plant)
        self.engines.append(engine := RunEnvironment(config, FakeClock(self.clock.now())))
        told, report = rehearse(engine, scope).to_mapping(), clean_up(engine, scope=scope).to_mapping()
        for name in ("deleted", "groups_touched", "held"):
            self.expect(report[name], told[name], f"{name}, as the dry run has told")
        return report

    def _explained(self, stored: set[tuple[int, int]]) -> dict[tuple[int, int], Explanation]:
        """Ask what becomes of some messages."""
        few = 4 if self.tier == "archive" else EXPLAINED
        asked = self.other.sample(sorted(stored), min(few, len(stored)))
        config, found = self.configured(), {}
        look = partial(queries.find, self.base)
        with closing(sqlite.connect(self.base.database, readonly=True)) as connection:
            connection.execute("BEGIN")
            for place, number in asked:
                told = explain.explain(connection, config, FakeClock(self.now), self.ids[place], number, look)
                if told.message is None or told.message.fate is None:
                    raise DisagreementError(f"explain does not know {place}, {number}: {told}; {self.story()}")
                found[place, number] = told
        return found

    def _compare_explained(
        self, told: dict[tuple[int, int], Explanation], gone: set[tuple[int, int]], job: Bounds | None
    ) -> None:
        for key, of in told.items():
            fate = of.message and of.message.fate
            assert fate
            if job == EVERYTHING or fate.by_mark or _scope(job).name in [each.name for each in of.jobs]:
                self.expect(key in gone, fate.is_next, f"explain of {key}: {fate}; goes")
            elif key in gone:
                self.expect(fate.is_next, True, f"explain of {key}: {fate}; goes")
            if key in gone and (fate.erasable_at is None or fate.erasable_at > self.now):
                self.expect(fate.erasable_at, self.now, f"explain of {key}: {fate}; erasable at")

    def _compare_receipts(self, report: dict[str, Any], gone: set[tuple[int, int]]) -> None:
        counts = {rule: count for rule, count in report["deleted"].items() if rule not in ("sessions", "invites")}
        self.expect(sum(count for rule, count in counts.items() if rule != "restored"), len(gone), f"report {counts}")
        rows = self._query(
            "SELECT receipt_id, group_id, messages, last_seq FROM receipts WHERE receipt_id > ?", self.receipts
        )
        places = {UUID(group_id).bytes: place for place, group_id in enumerate(self.ids)}
        counted, last = Counter[int](), dict[int, int]()
        for receipt_id, group_id, messages, last_seq in rows:
            place = places[group_id]
            counted[place] += messages
            last[place] = max(last.get(place, 0), last_seq)
            self.receipts = max(self.receipts, receipt_id)
        self.expect(counted, Counter(place for place, _ in gone), "receipts")
        self.expect(last, {place: max(n for p, n in gone if p == place) for place, _ in gone}, "their last numbers")
        with closing(sqlite.connect(self.base.database, readonly=True)) as connection:
            self.expect(receipts.verify(connection).broken_at, None, "chain of receipts")

    def _query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite.connect(self.base.database, readonly=True)) as connection:
            return [tuple(row) for row in connection.execute(sql, values)]

    def _stored(self) -> set[tuple[int, int]]:
        """Return what can be read in either tier."""
        hot = [(self.keys[key], number) for key, number in self._query("SELECT group_key, sequence_num FROM messages")]
        cold = [(self.keys[key], number) for key, number in archived(self.base)]
        counted = Counter([*hot, *cold])
        if twice := sorted(each for each, count in counted.items() if count > 1):
            raise DisagreementError(f"stored twice: {twice}; {self.story()}")
        return {*hot, *cold}

    # Comparing.

    async def compare(self, step: str) -> None:
        """Compare what each member is served, without being counted as having fetched it."""
        self.model.now = self.now
        served = dict[int, list[int]]()
        async with StoreAlone(self.running.app) as alone:
            for group in self.living:
                members = sorted(group.members)
                for user in members if self.tier == "hot" else [self.other.choice(members)]:
                    told = [self._served(group, number, user) for number in self.model.listed(group)]
                    found = await self._page(alone, user, group)
                    self.expect(found, told, f"{user} in {group.place}")
                served[group.place] = self.model.visible(group)
                self._stays_hidden(group, set(served[group.place]))
            marks = {
                (self.ids[group.place], self.users[user].user_id): member.watermark
                for group in self.living
                for user, member in group.members.items()
            }
            self.expect(alone.watermarks(), marks, "watermarks")
        await self._compare_told()
        floors = {group.place: group.floor for group in self.living if self.model.policy(group).lifetime == 0}
        self.seen.append(Seen(step, served, floors))

    def _served(self, group: Group, number: int, user: int) -> Served:
        sent = group.messages[number]
        is_shown = self.model.is_shown(sent, user)
        expires_at = self.model.expires_at(group, number)
        body = sent.body if is_shown else b""
        return number, sent.sender, body, sent.created_at, expires_at, sent.seconds, not is_shown

    async def _page(self, alone: StoreAlone, user: int, group: Group) -> list[Served]:
        found: list[Served] = []
        users = {user_id: user for user, user_id in self.user_ids.items()}
        token, group_id = self.users[user].token, self.ids[group.place]
        while page := await alone.page(token, group_id, found[-1][0] if found else 0, 500, include_redacted=True):
            if not isinstance(page, list):
                raise DisagreementError(f"{user} in {group.place} is refused: {page}; {self.story()}")
            found += [(each[0], users[each[1]], *each[2:]) for each in page]
        return found

    def _stays_hidden(self, group: Group, served: set[int]) -> None:
        """What was hidden once is hidden for ever, whatever the model says."""
        hidden = self.hidden.setdefault(group.place, set())
        if back := hidden & served:
            raise DisagreementError(f"{sorted(back)} of {group.place} are served again; {self.story()}")
        hidden |= set(range(1, group.last + 1)) - served

    async def _compare_told(self) -> None:
        """Compare what a member of some group is told of its policy."""
        group = self.other.choice(self.living)
        user = self.other.choice(sorted(group.members))
        found = await self.users[user].get(f"/groups/{self.ids[group.place]}/retention")
        lifetime, least, _ = self.model.policy(group)
        names = ("effective_expiry_seconds", "min_lifetime_seconds", "legal_hold")
        self.expect([found[name] for name in names], [lifetime, least, group.holds > 0], f"policy of {group.place}")

    def expect(self, found: Any, told: Any, what: str) -> None:
        if found != told:
            raise DisagreementError(f"{what}: {found!s:.1500} is not {told!s:.1500}; {self.story()}")

    def story(self) -> str:
        groups = "\n".join(f"{group!s:.3000}" for group in self.model.groups)
        return f"history {self.seed}, now {self.now}, {self.model.rules}\n{groups}\n" + "\n".join(self.told[-25:])


def _scope(job: Bounds | None) -> Scope:
    if job == EVERYTHING:
        return ALL
    if job is None:
        return Scope(HOUSEKEEPING, None, is_housekeeping=True)
    purge = PurgeJob(HOUR, *job)
    return Scope(purge.name, purge, is_housekeeping=False)


def archived(config: Config) -> list[tuple[int, int]]:
    """Return group key and number of all messages that can be read in the archive."""
    return [(row["group_key"], row["sequence_num"]) for row in Tiers(config).readable()]
