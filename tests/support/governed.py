"""A plain telling of how retention governs a server over time: who is served what, and what each run erases.

Written from the retention contract, in plain Python: no SQL, none of the project's functions. Lifetimes are seconds, or
-1 for none; 0 as a longest lifetime is delete-after-fetch. Users and groups are numbers. Tiers do not matter here.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

NOTHING = -1
EVERYTHING = (-1, -1)
"""The bounds of a job that covers all groups."""

Bounds = tuple[int, int]
"""A shortest and a longest lifetime, or the least and the greatest value of one."""


@dataclass(frozen=True)
class Rules:
    """What the operator has set.

    ``default``: the policy of groups that have set nothing. ``on_least`` and ``on_longest``: the limits on what admins
    set. ``overrides``: by group. ``max_age``: for how long somebody may read a self-destructing message for the first
    time.
    """

    server: int = NOTHING
    default: Bounds = (-1, -1)
    on_least: Bounds = (-1, -1)
    on_longest: Bounds = (-1, -1)
    overrides: Mapping[int, Bounds] = field(default_factory=dict)
    hold_limit: int = NOTHING
    retain_commits: bool = False
    enabled: bool = True
    next_fetch: bool = False
    max_age: int = 30 * 86_400
    admins_may_redact: bool = False


class Policy(NamedTuple):
    """What counts for one group. ``age_limit``: after how many seconds a message expires; -1: never."""

    lifetime: int
    least: int
    age_limit: int


@dataclass
class Sent:
    """A message: the second of its arrival, the number of its sender, whether it is a commit, its body.

    ``seconds``: for how long each may see it who has read it; 0: for ever. ``readers``: who was a member then and has
    been since. ``ends``: when it ends for those who have read it. ``ended``: it was too old to be read under former
    rules. ``taken``: it was taken back.
    """

    created_at: int
    sender: int
    is_commit: bool
    body: bytes
    seconds: int = 0
    readers: set[int] = field(default_factory=set)
    ends: dict[int, int] = field(default_factory=dict)
    ended: bool = False
    taken: bool = False


@dataclass
class Member:
    """A member: up to where the user has fetched, and whether it is an admin."""

    watermark: int = 0
    is_admin: bool = False


@dataclass
class Group:
    """A group. ``members`` in the order in which they joined; ``messages`` that are stored, by number.

    ``floor``: up to here all have fetched who were members at that time; ``commits_floor`` too, and never anew.
    """

    place: int
    members: dict[int, Member]
    longest: int = NOTHING
    least: int = NOTHING
    messages: dict[int, Sent] = field(default_factory=dict)
    last: int = 0
    floor: int = 0
    commits_floor: int = 0
    gone_below: int = 0
    expired_before: int = 0
    holds: int = 0
    is_deleted: bool = False
    banned: set[int] = field(default_factory=set)
    taken: dict[int, int] = field(default_factory=dict)
    """Who has taken which message back."""

    @property
    def reached(self) -> int:
        """Up to where all members have fetched."""
        return min((member.watermark for member in self.members.values()), default=0)

    @property
    def admins(self) -> list[int]:
        return [user for user, member in self.members.items() if member.is_admin]

    def look(self) -> None:
        """Remember what all have fetched. A floor that is looked at more often than needed is the same."""
        self.floor, self.commits_floor = max(self.floor, self.reached), max(self.commits_floor, self.reached)

    def fetch(self, user: int, up_to: int) -> None:
        self.members[user].watermark = max(self.members[user].watermark, up_to)
        self.look()


class Erased(NamedTuple):
    """What a run must erase, and what it may: by group and number."""

    must: set[tuple[int, int]]
    may: set[tuple[int, int]]


class Model:
    """A server's groups, users and rules. Groups are deleted, but stay in the list."""

    def __init__(self, rules: Rules, now: int) -> None:
        self.rules = rules
        self.now = now
        self.groups: list[Group] = []
        self.gone: set[int] = set()
        self.held: dict[int, int] = {}
        """Users, and how many legal holds cover them."""

    # What counts.

    def policy(self, group: Group, rules: Rules | None = None) -> Policy:
        rules = rules or self.rules
        if group.place in rules.overrides:
            least, longest = rules.overrides[group.place]
            return Policy(longest, max(0, least), longest)
        longest = group.longest if group.longest != NOTHING else rules.default[1]
        if longest > 0:
            longest = clamped(longest, rules.on_longest)
        least = clamped(group.least if group.least != NOTHING else rules.default[0], rules.on_least)
        if 0 in (rules.server, longest):
            return Policy(0, max(0, least, rules.on_longest[0]), rules.hold_limit)
        set_ = [each for each in (rules.server, longest) if each != NOTHING]
        lifetime = min(set_) if set_ else NOTHING
        return Policy(lifetime, max(0, least), lifetime)

    def is_kept(self, group: Group, number: int) -> bool:
        """Whether it is a commit that does not expire by age, since somebody has not fetched it."""
        return self.rules.retain_commits and group.messages[number].is_commit and number > group.commits_floor

    def is_aged(self, group: Group, number: int) -> bool:
        created, limit = group.messages[number].created_at, self.policy(group).age_limit
        is_past = created < group.expired_before or (limit > 0 and created + limit < self.now)
        return is_past and not self.is_kept(group, number)

    def is_of_the_gone(self, group: Group, number: int) -> bool:
        sent = group.messages[number]
        return sent.sender in self.gone and not sent.is_commit

    def is_marked(self, group: Group, number: int) -> bool:
        """Whether it is past a mark of a group that lives."""
        sent = group.messages[number]
        is_expired = sent.created_at < group.expired_before and not self.is_kept(group, number)
        return number <= group.gone_below or is_expired

    def is_too_old(self, sent: Sent) -> bool:
        """Whether nobody may read it for the first time any more."""
        return sent.ended or sent.created_at + self.rules.max_age < self.now

    def is_shown(self, sent: Sent, user: int) -> bool:
        """Whether a member may see it, as far as it destroys itself, and was not taken back."""
        if sent.taken or not sent.seconds:
            return not sent.taken
        if user not in sent.readers:
            return False
        return sent.ends[user] > self.now if user in sent.ends else not self.is_too_old(sent)

    def is_redacted(self, sent: Sent) -> bool:
        """Whether nobody may see it, since it has destroyed itself for all, or was taken back."""
        return sent.taken or (sent.seconds > 0 and not any(self.is_shown(sent, user) for user in sent.readers))

    def may_go(self, group: Group, number: int) -> bool:
        """Whether nothing withholds it from being erased."""
        sent = group.messages[number]
        is_old_enough = sent.created_at + self.policy(group).least <= self.now
        return self.rules.enabled and is_old_enough and not group.holds and not self.held.get(sent.sender)

    def visible(self, group: Group, user: int | None = None) -> list[int]:
        """List what a member may see, or what anybody may."""
        return [
            number
            for number in self.listed(group)
            if (
                self.is_shown(group.messages[number], user)
                if user is not None
                else not self.is_redacted(group.messages[number])
            )
        ]

    def listed(self, group: Group) -> list[int]:
        """List what members learn of, be it redacted."""
        return [
            number
            for number in sorted(group.messages)
            if number > group.gone_below and not self.is_aged(group, number) and not self.is_of_the_gone(group, number)
        ]

    def expires_at(self, group: Group, number: int) -> int:
        """The first second at which it is no longer served; 0 for none."""
        limit = self.policy(group).age_limit
        if limit <= 0 or self.is_kept(group, number):
            return 0
        return group.messages[number].created_at + limit + 1

    # What happens.

    def send(self, group: Group, user: int, body: bytes, *, is_commit: bool, seconds: int = 0) -> int:
        """Send as a member, who has seen the own message, but not those before it."""
        number = self.store(group, user, body, is_commit=is_commit)
        if seconds:
            sent = group.messages[number]
            sent.seconds, sent.readers, sent.ends = seconds, {*group.members}, {user: self.now + seconds}
        if group.members[user].watermark == number - 1:
            group.fetch(user, number)
        return number

    def store(self, group: Group, user: int, body: bytes, *, is_commit: bool) -> int:
        group.last += 1
        group.messages[group.last] = Sent(self.now, user, is_commit, body)
        return group.last

    def fetch(self, group: Group, user: int, after: int, limit: int, *, begins_in_archive: bool = False) -> list[int]:
        """Fetch a page, and confirm what it confirms."""
        page = [number for number in self.visible(group, user) if number > after][:limit]
        confirmed = min(after, group.last)
        # Who is shown less than others, and all that is left for that member, has fetched the rest with it.
        begin = max(after, group.gone_below)
        is_timed = any((sent.seconds or sent.taken) and number > begin for number, sent in group.messages.items())
        # A page that begins in the archive does not say so: the next one does.
        passes = is_timed and len(page) < limit and not begins_in_archive
        last = group.last if passes else max(page, default=0)
        # An empty page can't get lost with anything, so it counts at once.
        waits = self.rules.next_fetch and page
        group.fetch(user, confirmed if waits else max(confirmed, last))
        return page

    def read(self, group: Group, user: int, up_to: int) -> None:
        """Have a member say that everything up to a number is read. The first time counts."""
        for number, sent in group.messages.items():
            if sent.seconds and number <= up_to and user in sent.readers and not self.is_too_old(sent):
                sent.ends.setdefault(user, self.now + sent.seconds)

    def take_back(self, group: Group, user: int, number: int) -> tuple[int, int] | None:
        """Have a member take a message back; return how that is refused, as status and code."""
        if number not in self.listed(group):
            is_done = number not in group.messages and group.taken.get(number) == user
            return None if is_done else (404, 300)
        sent, member = group.messages[number], group.members[user]
        if sent.sender != user and not (member.is_admin and self.rules.admins_may_redact):
            return 403, 402
        if sent.is_commit:
            return 400, 100
        if not sent.taken:
            sent.taken, group.taken[number] = True, user
        return None

    def join(self, group: Group, user: int) -> None:
        group.look()
        group.members[user] = Member()

    def leave(self, group: Group, user: int) -> None:
        group.look()
        del group.members[user]
        for sent in group.messages.values():
            sent.readers.discard(user)
            sent.ends.pop(user, None)
        if not group.members:
            self.delete_group(group)
        elif not group.admins:
            next(iter(group.members.values())).is_admin = True
        if group.members:
            group.look()

    def delete_group(self, group: Group) -> None:
        group.members.clear()
        group.is_deleted = True

    def delete_account(self, user: int) -> None:
        for group in self.groups:
            if user in group.members:
                self.leave(group, user)
            group.banned.discard(user)
        self.gone.add(user)

    def change(self, group: Group, longest: int | None, least: int | None) -> bool:
        """Change what the admins have set, if the rules let them; return whether they do. None: it is not named."""
        if longest is not None and self.rules.server != NOTHING and longest > self.rules.server:
            return False
        longest, least = group.longest if longest is None else longest, group.least if least is None else least
        if 0 < longest < least:
            return False
        old, is_other = self.policy(group), longest != group.longest
        group.longest, group.least = longest, least
        if is_other and self.policy(group) != old:
            self._settle(group, old, self.policy(group), self.now)
        return True

    def foretell(self, group: Group, longest: int | None, least: int | None) -> tuple[int, int]:
        """Say how many messages a change and a run hide, and when the oldest of them was sent; 0 and 0 for none."""
        shown, changed = self.visible(group), deepcopy(group)
        was_after_fetch = self.policy(group).lifetime == 0
        self.change(changed, longest, least)
        if self.policy(changed).lifetime == 0 and not was_after_fetch:
            changed.gone_below = max(changed.gone_below, changed.floor)
        hidden = sorted({*shown} - {*self.visible(changed)})
        return len(hidden), group.messages[hidden[0]].created_at if hidden else 0

    def restart(self, rules: Rules, at: int) -> None:
        """Start with other rules; ``at``: the last second at which the old ones were in force."""
        former, self.rules = self.rules, rules
        if rules.max_age != former.max_age:
            for sent in (sent for group in self.groups for sent in group.messages.values()):
                sent.ended |= sent.seconds > 0 and sent.created_at + former.max_age < at
        commits, erases = rules.retain_commits != former.retain_commits, rules.enabled != former.enabled
        for group in self.groups:
            old, new = self.policy(group, former), self.policy(group)
            if not group.is_deleted and (old != new or commits or erases):
                self._settle(group, old, new, at, commits=commits)

    def _settle(self, group: Group, old: Policy, new: Policy, at: int, *, commits: bool = False) -> None:
        """Keep hidden what was hidden, if the policies do not hide the same. ``commits``: they are kept or no more."""
        group.look()
        if (old.lifetime, old.age_limit) == (new.lifetime, new.age_limit) and not commits:
            return
        lets_go = commits and self.rules.retain_commits
        if old.age_limit > 0:
            self.hide_before(group, at - old.age_limit)
        if lets_go:
            hidden = [number for number, sent in group.messages.items() if sent.created_at < group.expired_before]
            group.commits_floor = max(group.commits_floor, *hidden, 0)
        if old.lifetime == 0 != new.lifetime:
            group.gone_below = max(group.gone_below, group.floor)
        elif new.lifetime == 0 != old.lifetime:
            group.floor = max(group.gone_below, group.reached)

    def hide_before(self, group: Group, second: int) -> None:
        group.expired_before = max(group.expired_before, min(second, self.now))

    def hold_user(self, user: int, step: int) -> None:
        self.held[user] = self.held.get(user, 0) + step

    # Runs.

    def goes(self, group: Group, number: int, *, takes_part: bool) -> bool:
        """Whether a run that has raised its marks erases a message."""
        is_redacted = self.is_redacted(group.messages[number])
        due = number <= group.gone_below or self.is_aged(group, number) or is_redacted
        goes = group.is_deleted or self.is_of_the_gone(group, number) or (due and takes_part)
        return goes and self.may_go(group, number)

    def run(self, job: Bounds | None, *, is_exact: bool) -> Erased:
        """Raise the marks as a run does; say what it erases. Nothing is erased here. ``job``: None: no group by itself.

        ``is_exact``: a group with anything past a mark belongs to it whole. Else only what is past a mark has to go.
        """
        must, may = set[tuple[int, int]](), set[tuple[int, int]]()
        for group in self.groups:
            is_covered = self._covers(job, group)
            takes_part = is_covered or any(
                self.is_marked(group, number) and self.may_go(group, number) for number in group.messages
            )
            redacted = {number for number, sent in group.messages.items() if self.is_redacted(sent)}
            takes_part = takes_part or any(self.may_go(group, number) for number in redacted)
            marked = {number for number in group.messages if self.is_marked(group, number)} | redacted
            if takes_part and not group.is_deleted and self.policy(group).lifetime == 0:
                group.gone_below = max(group.gone_below, group.floor)
            for number in group.messages:
                if self.goes(group, number, takes_part=takes_part):
                    may.add((group.place, number))
                    surely = is_exact or is_covered or group.is_deleted or number in marked
                    if surely or self.is_of_the_gone(group, number):
                        must.add((group.place, number))
        return Erased(must, may)

    def _covers(self, job: Bounds | None, group: Group) -> bool:
        if job is None:
            return False
        shortest, longest = job
        lifetime = self.policy(group).lifetime
        if lifetime == 0:
            return shortest == NOTHING
        if lifetime == NOTHING:
            return longest == NOTHING
        return lifetime > shortest and (longest == NOTHING or lifetime <= longest)

    def erase(self, erased: set[tuple[int, int]]) -> None:
        for place, number in erased:
            del self.groups[place].messages[number]

    def stored(self) -> set[tuple[int, int]]:
        return {(group.place, number) for group in self.groups for number in group.messages}

    def edges(self, sent: Iterator[tuple[Group, int]]) -> Iterator[int]:
        """Yield the last and the first seconds that matter to messages, which were sent at those seconds."""
        for group, created_at in sent:
            _, least, limit = self.policy(group)
            if limit > 0:
                yield from (created_at + limit, created_at + limit + 1)
            if least > 0:
                yield from (created_at + least - 1, created_at + least)
        for timed in (each for group in self.groups for each in group.messages.values() if each.seconds):
            yield from (timed.created_at + self.rules.max_age, timed.created_at + self.rules.max_age + 1)
            yield from (second for end in timed.ends.values() for second in (end - 1, end))

    def kept_by_holds(self) -> int:
        """Count what a run has left only because of legal holds."""
        found = self._left_by_holds()
        return sum(bool(group.holds or self.held.get(group.messages[number].sender)) for group, number in found)

    def _left_by_holds(self) -> list[tuple[Group, int]]:
        """List what would go if there were no holds."""
        return [
            (group, number)
            for group in self.groups
            for number, sent in group.messages.items()
            if self.rules.enabled
            and sent.created_at + self.policy(group).least <= self.now
            and self._is_due(group, number)
        ]

    def _is_due(self, group: Group, number: int) -> bool:
        by_mark = number <= group.gone_below or self.is_aged(group, number)
        is_redacted = self.is_redacted(group.messages[number])
        return group.is_deleted or by_mark or is_redacted or self.is_of_the_gone(group, number)

    def withheld_until(self) -> Iterator[int]:
        """Yield the seconds from which on messages may be erased that are due, and too young."""
        for group in self.groups:
            for number, sent in group.messages.items():
                old_enough = sent.created_at + self.policy(group).least
                if self._is_due(group, number) and old_enough > self.now:
                    yield old_enough


def clamped(seconds: int, limit: Bounds) -> int:
    raised = max(seconds, limit[0])
    return raised if limit[1] == NOTHING else min(raised, limit[1])
