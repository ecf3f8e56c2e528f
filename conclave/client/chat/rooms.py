"""What the chat knows of the user's groups, and what it makes of their changes. It is in memory only, and pure."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID, uuid4

from conclave.client.chat import formatting
from conclave.client.chat.mentions import is_meant
from conclave.client.events import Message
from conclave.client.names import name_from_title
from conclave.wire.results import GroupDetails, InviteInfo, RetentionInfo

MOST_NOTICES = 100
"""A group shows its last 100 notices."""

_ADMIN = "admin"

T = TypeVar("T")


@dataclass(frozen=True)
class Notice:
    """Something that happened in a group, told between its messages. ``after``: the number that it stands after.

    ``is_bad``: the user should do something about it.
    """

    after: int
    at: int
    text: str
    is_bad: bool = False


@dataclass
class Draft:
    """A text that is to be sent. ``refused``: why the server does not take it; "": it has not said so.

    ``number``: what it got; it is shown as a draft until it comes as a message. ``is_stored``: it has come already,
    before the answer to the request, which may be lost. ``is_held``: it waits until the user has judged a member's key.
    ``tried_at``: when a first try began that had no answer, by a clock that goes on while the machine sleeps.
    ``is_trying``: the answer to a try may still come. ``is_unknown``: the first try is so long ago that the server may
    have it, and would store it once more. ``is_called_back``: it is not sent any more, and taken back if it comes.
    """

    group_id: UUID
    text: str = field(repr=False)
    self_destruct_seconds: int = 0
    send_id: UUID = field(default_factory=uuid4)
    refused: str = ""
    number: int | None = None
    is_stored: bool = False
    is_held: bool = False
    tried_at: float | None = None
    is_trying: bool = False
    is_unknown: bool = False
    is_called_back: bool = False

    @property
    def may_be_there(self) -> bool:
        """Whether the server may have it."""
        return self.is_trying or self.tried_at is not None or self.number is not None

    @property
    def waits(self) -> bool:
        """Whether it is still to be sent."""
        return not (self.refused or self.is_held or self.is_called_back) and self.number is None

    def refuse(self, why: str) -> None:
        """The server does not take it: what came in its place was another one, with the same text."""
        self.refused, self.is_stored = why, False

    def send_anew(self) -> None:
        """The user wants it to be sent, whatever became of it before."""
        if self.is_unknown:
            self.send_id, self.tried_at, self.is_unknown = uuid4(), None, False
        self.refused, self.is_held = "", False


@dataclass
class Room:
    """A group, and what is shown of it. ``messages``: those that are loaded, by number, ascending.

    ``fetched_up_to``: the number of the last message that came, gone or not. ``read_before``: up to which number it was
    read when it was opened; None: everything was. ``is_at_end``: its newest messages are on the screen.
    ``has_earlier`` and ``has_later``: there are messages before, or after, those that are loaded. ``unread_from``: the
    number of the first unread one of somebody else's; None: there is none. ``retention_read``: the number of the read
    that ``retention`` is from. ``mentions``: the numbers of the unread messages that mean the user; None: not looked
    for yet. ``muted_until``: before this second the group does not call. ``found``: the number of the message that was
    gone to; None: none was. ``went``: how many of the loaded messages a policy has hidden of which was not told yet.
    """

    group: GroupDetails
    retention: RetentionInfo | None = None
    retention_read: int = 0
    messages: dict[int, Message] = field(default_factory=dict)
    is_loaded: bool = False
    has_earlier: bool = False
    has_later: bool = False
    is_at_end: bool = True
    notices: list[Notice] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)
    unread: int = 0
    unread_from: int | None = None
    fetched_up_to: int = 0
    read_before: int | None = None
    mentions: set[int] | None = None
    muted_until: int = 0
    found: int | None = None
    went: int = 0
    self_destruct_seconds: int = 0
    typed: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """How the group is called: by its name, which no other group of the server has."""
        return formatting.called(self.group.group_name)

    @property
    def names(self) -> tuple[str, str]:
        """The name and the title."""
        return self.group.group_name, self.group.alias

    @property
    def label(self) -> str:
        """How the group is called: by its title if the name was made of it, so that no other group has both."""
        name, title = self.group.group_name, self.group.alias
        made = name_from_title(title)
        is_made = bool(made) and re.fullmatch(rf"{re.escape(made)}(_[0-9])?", name)
        return formatting.called(title) if is_made else self.name

    @property
    def listed(self) -> str:
        """What stands in the list of groups: the name, with a title that it was not made of, which is not unique."""
        return self.label if self.label != self.name else formatting.titled(self.group.group_name, self.group.alias)

    @property
    def expiry(self) -> int | None:
        """The effective expiry; None until it is known."""
        return self.retention.effective_expiry_seconds if self.retention else None

    def is_admin(self, user_id: UUID) -> bool:
        """Tell whether somebody is an admin of the group."""
        return any(each.user_id == user_id and each.role == _ADMIN for each in self.group.members)

    def means(self, username: str, text: str | None) -> bool:
        """Tell whether a text in this group means a user."""
        return is_meant(text, username, (each.username for each in self.group.members))

    def is_muted(self, now: int) -> bool:
        """Tell whether the group does not call."""
        return now < self.muted_until

    def load(self, messages: Iterable[Message]) -> None:
        """Show these messages, and no others."""
        self.messages = {each.sequence_num: each for each in messages}
        self.is_loaded = True

    def add(self, message: Message) -> None:
        """Show one more message. One from before those that are loaded, or after them, is there once they are."""
        if self.has_earlier and message.sequence_num < min(self.messages, default=0):
            return
        if self.has_later and message.sequence_num > max(self.messages, default=0):
            return
        is_last = message.sequence_num > next(reversed(self.messages), 0)
        self.messages[message.sequence_num] = message
        if not is_last:  # it was stored, but not told, when a program ended
            self.messages = dict(sorted(self.messages.items()))

    def notice(self, text: str, at: int, *, is_bad: bool = False) -> None:
        """Tell something after the last message."""
        self.notices.append(Notice(self.fetched_up_to, at, text, is_bad))
        del self.notices[:-MOST_NOTICES]

    def items(self, now: int) -> Iterator[Message | Notice | Draft]:
        """Return what is shown, in its order: messages that are there now, notices between them, then drafts."""
        notices = list(self.notices)
        for number, message in self.messages.items():
            while notices and notices[0].after < number:
                yield notices.pop(0)
            if not message.is_gone(now):
                yield message
        yield from notices
        yield from (each for each in self.drafts if not (each.is_stored or each.is_called_back))


class Rooms:
    """All groups of the user, and the invites to others."""

    def __init__(self, user_id: UUID) -> None:
        self.user_id = user_id
        self.all: dict[UUID, Room] = {}
        self.invites: tuple[InviteInfo, ...] = ()
        self._names: dict[UUID, str] = {}
        self._former: dict[UUID, str] = {}

    def ordered(self) -> list[Room]:
        """Return the groups by their names."""
        return sorted(self.all.values(), key=lambda each: each.name.lower())

    def name_of(self, group_id: UUID) -> str:
        """Return how a group is called, or was."""
        room = self.all.get(group_id)
        return room.name if room else self._former.get(group_id, "a group")

    def by_name(self, name: str) -> Room | None:
        """Find a group by its name; or else by its title; or by as much of one of these as only one group has."""
        rooms = self.all.values()
        found = named(name, rooms, lambda each: each.group.group_name) or named(name, rooms, lambda each: each.label)
        found = found or named(name, rooms, lambda each: each.group.alias)
        begun = [each for each in rooms if any(it.lower().startswith(name.lower()) for it in each.names)]
        return found or (begun[0] if name and len(begun) == 1 else None)

    def person(self, user_id: UUID) -> str | None:
        """Return the name of somebody, if it is known. It is the username: two people can have the same alias."""
        return self._names.get(user_id)

    def called(self, user_id: UUID) -> str:
        """Return a name for somebody in any case."""
        return self._names.get(user_id, "somebody")

    def learn(self, user_id: UUID, username: str) -> None:
        """Note how somebody is called."""
        self._names[user_id] = formatting.called(username)

    def member(self, room: Room, username: str) -> UUID | None:
        """Find a member of a group by name, as it is written: bob and Bob are two people."""
        return next((each.user_id for each in room.group.members if each.username == username), None)

    def unsent(self) -> int:
        """Return how many texts were not sent."""
        drafts = [each for room in self.all.values() for each in room.drafts]
        return sum(each.number is None and not (each.is_stored or each.is_called_back) for each in drafts)

    def renew(self, groups: Sequence[GroupDetails], now: int) -> None:
        """Take the groups as they are now; what has changed is told in them."""
        for group in groups:
            for each in group.members:
                self.learn(each.user_id, each.username)
            room = self.all.get(group.group_id)
            if room is None:
                self.all[group.group_id] = Room(group)
                continue
            for text in changes(room.group, group, self.user_id):
                room.notice(text, now)
            room.group = group
        for group_id in self.all.keys() - {each.group_id for each in groups}:
            self.drop(group_id)

    def drop(self, group_id: UUID) -> Room | None:
        """Forget a group."""
        room = self.all.pop(group_id, None)
        if room:
            self._former[group_id] = room.name
        return room


def named(name: str, things: Iterable[T], name_of: Callable[[T], str]) -> T | None:
    """Return what has a name; if nothing has it, what has it but for capitals, unless more than one does."""
    found = {name_of(each): each for each in things}
    if name in found:
        return found[name]
    close = [each for key, each in found.items() if key.lower() == name.lower()]
    return close[0] if len(close) == 1 else None


def changes(old: GroupDetails, new: GroupDetails, user_id: UUID) -> Iterator[str]:
    """Say what has changed in a group. What was done to members is told of others than the user."""
    before, after = ({each.user_id: each for each in group.members} for group in (old, new))
    for each in new.members:
        if each.user_id not in before:
            yield f"{_who(each.user_id, each.username, user_id)} came in"
    for each in old.members:
        if each.user_id not in after:
            yield f"{formatting.called(each.username)} is not a member any more"
    for each in new.members:
        if each.user_id in before and before[each.user_id].role != each.role:
            who = _who(each.user_id, each.username, user_id, be=True)
            yield f"{who} an admin now" if each.role == _ADMIN else f"{who} no admin any more"
    yield from _settings(old, new)


def _settings(old: GroupDetails, new: GroupDetails) -> Iterator[str]:
    if old.group_name != new.group_name:
        yield f"the group is called {formatting.called(new.group_name)} now"
    if old.alias != new.alias:
        yield f"the title is {formatting.harmless(new.alias)} now" if new.alias else "the title is gone"
    if old.visibility != new.visibility:
        yield "everybody can find and join the group now" if new.visibility == "public" else "the group is private now"


def _who(who: UUID, username: str, user_id: UUID, *, be: bool = False) -> str:
    name = "you" if who == user_id else formatting.called(username)
    return name + (" are" if who == user_id else " is") * be


def held_by(room: Room, names: Mapping[UUID, str] | None = None) -> list[str]:
    """Return who holds a delete-after-fetch group back, by not having fetched; told to admins only."""
    known = {each.user_id: each.username for each in room.group.members} | dict(names or {})
    holding = room.retention.held_by if room.retention else ()
    return [formatting.called(known[each]) if each in known else "somebody" for each in holding]
