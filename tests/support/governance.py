"""Random histories of governance: whatever happens to a server happens to a plain model too."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from copy import deepcopy
from dataclasses import replace
from typing import Any
from uuid import UUID

from conclave.actions import holds, purges
from conclave.actions.command_runner import CommandRunner
from tests.support.beside import ARCHIVE, DAY, HOUR, JOBS, Beside, Seen, archived
from tests.support.client import PASSWORD, RefusedError, encode
from tests.support.governed import EVERYTHING, Group, Rules
from tests.support.world import DisagreementError

LIFETIMES = (HOUR, 5 * HOUR, 2 * DAY)
LONGEST = (-1, -1, 0, 0, *LIFETIMES)
TIMERS = (0, 0, 60, HOUR, 2 * HOUR, 2 * DAY)
MAX_AGES = (2 * HOUR, DAY, 30 * DAY)
LEAST = (-1, -1, 0, HOUR // 2, HOUR, DAY)
PASSING = (1, 60, HOUR // 2, HOUR, 5 * HOUR, DAY)
MOST_GROUPS = 4
OPERATOR = "operator root"


class History(Beside):
    """What happens to a server, at random."""

    async def play(self, steps: int) -> None:
        """Play a history. Raises DisagreementError."""
        try:
            await self.open()
            for _ in range(4):
                await self.register()
            for _ in range(3):
                await self.create_group()
            await self.compare("begin")
            for _ in range(steps):
                if self.other.random() < self.extra:
                    await self.run(self.other.choice([EVERYTHING, EVERYTHING, *JOBS]))
                step = self.chance.choice(self.steps())
                self.told.append(f"{step.__name__} at {self.now}")
                await step()
                while len(self.living) < 2:  # a group goes with its last member, too
                    await self.create_group()
                await self.compare(step.__name__)
            if self.runs:
                self.clock.advance(1)
                await self.run(EVERYTHING)
        except RefusedError as refused:
            raise DisagreementError(f"{refused}; {self.story()}") from refused
        finally:
            await self.server.aclose()
            for engine in self.engines:
                engine.close()

    def steps(self) -> list[Callable[[], Awaitable[None]]]:
        """What may happen, the likelier the more often it is named."""
        often = [self.send, self.send, self.send, self.send, self.fetch, self.fetch, self.pass_time, self.to_an_edge]
        others = [
            self.change_policy,
            self.change_policy,
            self.come_or_go,
            self.come_or_go,
            self.act_as_admin,
            self.newcomer,
        ]
        rare = [self.restart, self.restart, self.hold, self.hold, self.purge, self.delete]
        if self.runs:
            others += [self.clean_up, self.clean_up] if self.tier == "hot" else [self.clean_up] * 4
        if self.tier == "archive":
            rare += [self.restore, self.pass_time, self.send, self.send]
        if self.timers:
            often += [self.read, self.read, self.to_an_edge]
        if self.takes_back:
            often += [self.take_back, self.take_back]
        favourites = [getattr(self, self.favourite)] * 12 if self.favourite else []
        return [*often, *often, *others, *others, *rare, *favourites]

    async def come_or_go(self) -> None:
        group, user = self._group(), self.chance.choice(sorted(self.users))
        client, group_id = self.users[user], self.ids[group.place]
        if user in group.members:
            if len(group.members) == 1 and self.chance.random() < 0.7:
                return
            commits = self.chance.random() < 0.4
            if commits:
                body = self._body(group)
                await client.post(f"/groups/{group_id}/leave", commit_message=encode(body))
                self._sent(group, user, body, is_commit=True)
            else:
                await client.leave(group_id)
            self.model.leave(group, user)
        elif user in group.banned:
            try:
                await client.join(group_id)
            except RefusedError:
                return
            raise DisagreementError(f"{user} was banned; {self.story()}")
        elif self.chance.random() < 0.3:
            admin, body = self.chance.choice(group.admins), self._body(group)
            await self.users[admin].bring(client, group_id, body)
            self.model.join(group, user)
            self.sent.append((group, self.now))
            self.model.store(group, admin, body + b" commit", is_commit=True)
        else:
            await self.join(group, user)

    async def newcomer(self) -> None:
        """Have somebody join after all have fetched, and perhaps the policy change before the newcomer does."""
        group = self._group()
        if strangers := sorted(self.users.keys() - group.members.keys() - group.banned):
            await self._send(group)
            for user in sorted(group.members):
                await self._fetch(group, user, group.last, 1)
            await self.join(group, self.chance.choice(strangers))
            if self.chance.random() < 0.6:
                await self._change(group, self.chance.choice(LONGEST), None)

    async def act_as_admin(self) -> None:
        group = self._group()
        admin, user = self.chance.choice(group.admins), self.chance.choice(sorted(self.users))
        kind = self.chance.choice(["remove", "ban", "promote"])
        client, group_id = self.users[admin], self.ids[group.place]
        if user == admin:
            return
        if user in group.banned and kind == "ban":
            await client.act("unban", group_id, self.users[user])
            group.banned.discard(user)
        elif kind == "promote" and user in group.members and not group.members[user].is_admin:
            await client.act("promote", group_id, self.users[user])
            group.members[user].is_admin = True
        elif kind == "ban" or (kind == "remove" and user in group.members):
            body = self._body(group)
            await client.act(kind, group_id, self.users[user], commit_message=encode(body))
            if user in group.members:
                self._sent(group, admin, body, is_commit=True)
                self.model.leave(group, user)
            if kind == "ban":
                group.banned.add(user)

    async def delete(self) -> None:
        """Delete a group or an account; another one takes its place."""
        if self.chance.random() < 0.5:
            group = self._group()
            if self.chance.random() < 0.4:
                await self._change(group, None, self.chance.choice(LEAST))
                await self._send(group)
            await self.users[self.chance.choice(group.admins)].post(f"/groups/{self.ids[group.place]}/delete")
            self.model.delete_group(group)
        else:
            user = self.chance.choice(sorted(self.users))
            await self.users.pop(user).post("/delete-account", password=PASSWORD)
            self.model.delete_account(user)
            await self.register()
        if len(self.living) < MOST_GROUPS and self.chance.random() < 0.5:
            await self.create_group()

    # Messages.

    async def send(self) -> None:
        """Send some messages, or commits."""
        group = self._group()
        for _ in range(self.chance.randint(1, 4)):
            await self._send(group)

    async def _send(self, group: Group) -> None:
        user, is_commit, body = self._member(group), self.chance.random() < 0.3, self._body(group)
        path = f"/groups/{self.ids[group.place]}"
        if is_commit:
            await self.users[user].post(f"{path}/commit", commit_message=encode(body))
            self._sent(group, user, body, is_commit=True)
        else:
            seconds = self.chance.choice(TIMERS) if self.timers else 0
            await self.users[user].send(self.ids[group.place], body, seconds)
            self._sent(group, user, body, is_commit=False, seconds=seconds)

    def _sent(self, group: Group, user: int, body: bytes, *, is_commit: bool, seconds: int = 0) -> None:
        self.sent.append((group, self.now))
        self.model.send(group, user, body, is_commit=is_commit, seconds=seconds)

    async def read(self) -> None:
        """Have some members, or all, say how far they have read."""
        group = self._group()
        for user in self.chance.sample(sorted(group.members), self.chance.choice([1, len(group.members)])):
            up_to = self.chance.choice([group.last, group.last + 3, self.chance.randint(0, group.last)])
            if up_to:
                await self.users[user].read(self.ids[group.place], up_to)
                self.model.now = self.now
                self.model.read(group, user, min(up_to, group.last))

    async def take_back(self) -> None:
        """Have somebody take a message back, who may or may not."""
        group = self._group()
        await self.running.settle()
        user = self._member(group)
        own = [number for number, sent in group.messages.items() if sent.sender == user]
        number = (
            self.chance.choice(own) if own and self.chance.random() < 0.7 else self.chance.randint(1, group.last + 1)
        )
        self.model.now = self.now
        refused = self.model.take_back(group, user, number)
        self.told.append(f"{user} takes {number} of {group.place} back: {refused}")
        try:
            await self.users[user].take_back(self.ids[group.place], number)
        except RefusedError as error:
            self.expect((error.status, error.code), refused, f"{user} takes {number} of {group.place} back")
        else:
            self.expect(None, refused, f"{user} takes {number} of {group.place} back")

    async def fetch(self) -> None:
        """Have some members fetch a page, or all there is."""
        group = self._group()
        for user in self.chance.sample(sorted(group.members), self.chance.randint(1, len(group.members))):
            drawn = self.chance.choice([0, group.last, group.last, self.chance.randint(0, group.last + 2)])
            limit = self.chance.choice([1, 3, 500, 500])
            # Where runs are no steps, what is confirmed must not depend on what a run has left to fetch.
            after = drawn if self.runs or self.model.rules.next_fetch else group.last
            await self._fetch(group, user, after, limit)

    async def _fetch(self, group: Group, user: int, after: int, limit: int) -> None:
        found = await self.users[user].fetch(self.ids[group.place], after, limit)
        await self.running.settle()
        self.model.now = self.now
        begins_in_archive = (
            (self.timers or self.takes_back) and self.tier == "archive" and self._watermark(group, user) < group.last
        )
        told = self.model.fetch(group, user, after, limit, begins_in_archive=begins_in_archive)
        self.expect([each.sequence_num for each in found], told, f"fetch of {group.place} after {after}")
        self.expect([each.body for each in found], [group.messages[number].body for number in told], "bodies")

    def _watermark(self, group: Group, user: int) -> int:
        ids = UUID(self.ids[group.place]).bytes, UUID(self.user_ids[user]).bytes
        found = self._query(
            "SELECT watermark FROM members JOIN groups USING (group_key) WHERE group_id = ? AND user_id = ?", *ids
        )
        return int(found[0][0])

    # Time.

    async def pass_time(self) -> None:
        self.clock.advance(self.chance.choice(PASSING))

    async def to_an_edge(self) -> None:
        """Go to a second at which something expires, or may be erased; or to the one before. Perhaps do a run then."""
        edges = sorted({edge for edge in self.model.edges(iter(self.sent)) if edge > self.now})[:12]
        young = sorted({*self.model.withheld_until()})[:3] if self.runs else []
        if young and self.chance.random() < (0.5 if self.tier == "hot" else 0.2):
            self.clock.seconds = max(self.now, self.chance.choice(young) - self.chance.choice([0, 1]))
            await self.run(EVERYTHING)
        elif edges:
            self.clock.seconds = self.chance.choice(edges)
            if self.runs and self.chance.random() < (0.3 if self.tier == "hot" else 0.1):
                await self.compare("to_an_edge")
                await self.clean_up()

    # Admins and operators.

    async def change_policy(self) -> None:
        """Have an admin change what is set, or only ask what that would hide."""
        named = self.chance.choice(["longest", "longest", "least", "both"])
        longest = self.chance.choice(LONGEST) if named != "least" else None
        least = self.chance.choice(LEAST) if named != "longest" else None
        await self._change(self._group(), longest, least, is_dry=self.chance.random() < 0.2)

    async def _change(self, group: Group, longest: int | None, least: int | None, *, is_dry: bool = False) -> None:
        """Change what is named; the server refuses what the model refuses, and foretells the same."""
        changes: dict[str, Any] = {"dry_run": True} if is_dry else {}
        if longest is not None:
            changes |= {"message_expiry_seconds": longest, "update_message_expiry": True}
        if least is not None:
            changes |= {"min_lifetime_seconds": least, "update_min_lifetime": True}
        client = self.users[self.chance.choice(group.admins)]
        self.model.now = self.now
        foretold = self.model.foretell(group, longest, least)
        told = self.model.change(deepcopy(group) if is_dry else group, longest, least)
        try:
            found = await client.call("PATCH", f"/groups/{self.ids[group.place]}", json=changes)
        except RefusedError as refused:
            self.expect((refused.status, refused.code, told), (400, 100, False), f"change of {group.place}: {changes}")
            return
        self.expect(told, True, f"change of {group.place} to {changes}")
        self.expect((found["messages_expiring"], found["oldest_expiring"]), foretold, f"foretold of {changes}")

    async def restart(self) -> None:
        """Start anew with other rules. Time may pass meanwhile, and a run may act on the old ones."""
        await self.server.aclose()
        self.server = AsyncExitStack()
        at = self.now
        if self.chance.random() < 0.4:
            self.clock.advance(self.chance.choice([HOUR, 5 * HOUR]))
            if self.runs and self.tier == "hot" and self.chance.random() < 0.3:
                await self._run(EVERYTHING)
                at = self.now
        rules = self._other_rules()
        if self.timers and self.chance.random() < 0.3:
            rules = replace(rules, max_age=self.chance.choice(MAX_AGES))
        if self.takes_back and self.chance.random() < 0.5:
            rules = replace(rules, admins_may_redact=not rules.admins_may_redact)
        self.told.append(f"{rules}")
        self.model.now = self.now
        self.model.restart(rules, at)
        await self.open()

    def _other_rules(self) -> Rules:
        """Draw rules that differ in a setting or two, and that a server starts with."""
        chance, rules = self.chance, self.model.rules
        for _ in range(chance.randint(1, 2)):
            name = chance.choice(
                ["server", "server", "default", "limits", "overrides", "overrides", "hold_limit", "commits", "other"]
            )
            if name == "server":
                rules = replace(rules, server=chance.choice((-1, -1, 0, *LIFETIMES)))
            elif name == "default":
                rules = replace(rules, default=chance.choice([(-1, -1), (HOUR, -1), (-1, HOUR), (HOUR, 2 * DAY)]))
            elif name == "limits":
                longest = chance.choice([(-1, -1), (5 * HOUR, -1), (-1, 5 * HOUR), (HOUR, DAY)])
                rules = replace(
                    rules, on_least=chance.choice([(-1, -1), (HOUR, 2 * HOUR), (-1, 0)]), on_longest=longest
                )
            elif name == "overrides":
                place = self._group().place
                set_ = chance.choice([None, (-1, -1), (-1, HOUR), (HOUR, 5 * HOUR), (DAY, -1), (-1, 2 * DAY)])
                kept = {each: bounds for each, bounds in rules.overrides.items() if each != place}
                rules = replace(rules, overrides=kept | ({place: set_} if set_ else {}))
            elif name == "hold_limit":
                rules = replace(rules, hold_limit=chance.choice([-1, HOUR, DAY]))
            elif name == "commits":
                # Who lets go of commits in the archive does so by parts, not by messages: never anew there.
                is_new = self.tier == "hot" or self.ran == 0
                rules = replace(rules, retain_commits=not rules.retain_commits and is_new)
            elif chance.random() < 0.5:
                rules = replace(rules, enabled=not rules.enabled)
            else:
                rules = replace(rules, next_fetch=not rules.next_fetch)
        if 0 < rules.server < rules.on_longest[0]:
            rules = replace(rules, on_longest=(-1, -1))
        return rules

    @property
    def _outside(self) -> CommandRunner:
        return CommandRunner(self.running.config, self.clock)

    async def hold(self) -> None:
        """Add a legal hold, or release one."""
        if self.holding and self.chance.random() < 0.5:
            hold_id, kind, of = self.holding.pop(self.chance.randrange(len(self.holding)))
            await asyncio.to_thread(
                lambda: self._outside.write(holds.release, self._outside.context(), OPERATOR, hold_id)
            )
            self._hold(kind, of, -1)
            return
        kind = self.chance.choice(["group", "user"])
        of = self.chance.choice(self._coverable(kind))

        def add() -> int:
            find, name = (holds.find_group, self.ids[of]) if kind == "group" else (holds.find_user, self.user_ids[of])
            covered = self._outside.read(find, name)
            return self._outside.write(holds.add, self._outside.context(), OPERATOR, covered, "case 17").hold_id

        self.holding.append((await asyncio.to_thread(add), kind, of))
        self._hold(kind, of, 1)

    def _coverable(self, kind: str) -> list[int]:
        """List whom a hold can cover; where it does not matter what runs have left, also what was deleted."""
        left = [(group, sent) for group in self.model.groups for sent in group.messages.values()] if self.runs else []
        if kind == "group":
            return sorted({group.place for group in self.living} | {group.place for group, _ in left})
        return sorted({*self.users} | {sent.sender for _, sent in left})

    def _hold(self, kind: str, of: int, step: int) -> None:
        if kind == "group":
            self.model.groups[of].holds += step
        else:
            self.model.hold_user(of, step)

    async def purge(self) -> None:
        """Hide what a group has from before a time, as the command does with ``--no-run``."""
        group, ago = self._group(), self.chance.choice([0, 1, HOUR, DAY])
        before, group_id = self.now - ago, UUID(self.ids[group.place]).bytes
        await asyncio.to_thread(
            lambda: self._outside.write(purges.purge, self._outside.context(), OPERATOR, group_id, before)
        )
        self.model.hide_before(group, before)

    # Runs.

    async def clean_up(self) -> None:
        everything = [EVERYTHING] * (2 if self.tier == "hot" else 8)
        jobs = [*everything, *JOBS]
        await self.run(self.chance.choice(jobs))

    async def restore(self) -> None:
        """Take a group back from the archive; the next run of everything may move it again."""
        cold = {self.keys[key] for key, _ in archived(self.base)}
        if places := sorted(place for place in cold if not self.model.groups[place].is_deleted):
            place = self.chance.choice(places)
            config = replace(self.configured(), archive=replace(ARCHIVE, after=-1))
            told = await asyncio.to_thread(self.cleaner.restore, config, self.now, UUID(self.ids[place]).bytes, "")
            if "restored" not in told and "nothing of the group is served" not in told["error"]:
                raise DisagreementError(f"{told}; {self.story()}")


def differing(one: History, other: History) -> Iterator[str]:
    """Yield where two histories of the same steps, with runs at other moments, have served different messages.

    But for the one exception: what all had fetched may be served again, in delete-after-fetch, until a run.
    """
    for position, (here, there) in enumerate(zip(_steps(one), _steps(other), strict=True)):
        for place in here.served.keys() | there.served.keys():
            differs = set(here.served.get(place, [])) ^ set(there.served.get(place, []))
            graced = min(here.floors.get(place, 0), there.floors.get(place, 0))
            if wrong := sorted(number for number in differs if number > graced):
                yield f"step {position}, {here.step}: {wrong} of {place}\n{one.story()}\n{other.story()}"


def _steps(history: History) -> list[Seen]:
    return [seen for seen in history.seen if seen.step != "run"]
