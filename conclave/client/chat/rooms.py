"""The state of the user's groups as shown, and how it changes. In memory only, and pure."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID, uuid4

from conclave.client.chat import formatting
from conclave.client.chat.mentions import mentions_user
from conclave.client.events import Message
from conclave.client.names import name_from_title
from conclave.wire.results import GroupDetails, InviteInfo, RetentionInfo

MAX_NOTICES = 100
"""A group shows its last 100 notices."""

_ADMIN = "admin"

T = TypeVar("T")


@dataclass(frozen=True)
class Notice:
    """An event in a group, shown between its messages. ``after``: the number of the message before it.

    ``is_error``: the user should act on it.
    """

    after: int
    at: int
    text: str
    is_error: bool = False


@dataclass
class PendingMessage:
    """A message that is being sent. ``refused``: the server's reason for refusing it, or "".

    ``number``: its sequence number once sent; it is shown as pending until it arrives as a message. ``is_stored``: it
    arrived before the answer to its request, which may be lost. ``is_held``: it waits for the user to review a member's
    key. ``tried_at``: when the first try without an answer began, by a clock that includes sleep. ``is_trying``: a
    request is in progress. ``is_unknown``: the first try is too long ago to repeat it safely: the server may store the
    message twice. ``is_cancelled``: it is not sent again, and taken back if it arrives.
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
    is_cancelled: bool = False

    @property
    def may_be_stored(self) -> bool:
        """Whether the server may have it."""
        return self.is_trying or self.tried_at is not None or self.number is not None

    @property
    def waits(self) -> bool:
        """Whether it is still to be sent."""
        return not (self.refused or self.is_held or self.is_cancelled) and self.number is None

    def refuse(self, why: str) -> None:
        """Record a refusal: a message that arrived was another one with the same text."""
        self.refused, self.is_stored = why, False

    def retry(self) -> None:
        """Send it again, whatever happened before."""
        if self.is_unknown:
            self.send_id, self.tried_at, self.is_unknown = uuid4(), None, False
        self.refused, self.is_held = "", False


@dataclass
class Room:
    """A group and what is shown of it. ``messages``: the loaded ones by number, ascending.

    ``fetched_up_to``: the number of the last message that arrived, expired or not. ``read_before``: the last read
    number when the group was opened; None: no unread messages. ``is_at_end``: the newest messages are on the screen.
    ``has_earlier`` and ``has_later``: there are messages before or after the loaded ones. ``unread_from``: the number
    of the first unread message of another user. ``retention_read``: the number of the request that returned
    ``retention``. ``mentions``: the numbers of unread messages that mention the user; None: not determined yet.
    ``muted_until``: a Unix second. ``found``: the number of the search result that was opened. ``hidden_count``: how
    many loaded messages a new policy has hidden, not announced yet. ``typed``: the text in the input field.
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
    pending: list[PendingMessage] = field(default_factory=list)
    unread: int = 0
    unread_from: int | None = None
    fetched_up_to: int = 0
    read_before: int | None = None
    mentions: set[int] | None = None
    muted_until: int = 0
    found: int | None = None
    hidden_count: int = 0
    self_destruct_seconds: int = 0
    typed: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """The group's name for display; it is unique on the server."""
        return formatting.display_name(self.group.group_name)

    @property
    def names(self) -> tuple[str, str]:
        """The name and the title."""
        return self.group.group_name, self.group.alias

    @property
    def label(self) -> str:
        """The title if the name was derived from it, which makes the pair unique; otherwise the name."""
        name, title = self.group.group_name, self.group.alias
        derived = name_from_title(title)
        is_derived = bool(derived) and re.fullmatch(rf"{re.escape(derived)}(_[0-9])?", name)
        return formatting.display_name(title) if is_derived else self.name

    @property
    def sidebar_label(self) -> str:
        """The label for the list of groups: the name, and a title that it was not derived from."""
        return (
            self.label
            if self.label != self.name
            else formatting.name_with_title(self.group.group_name, self.group.alias)
        )

    @property
    def expiry(self) -> int | None:
        """The effective expiry; None if unknown."""
        return self.retention.effective_expiry_seconds if self.retention else None

    def is_admin(self, user_id: UUID) -> bool:
        """Tell whether a user is an admin of the group."""
        return any(each.user_id == user_id and each.role == _ADMIN for each in self.group.members)

    def mentions_user(self, username: str, text: str | None) -> bool:
        """Tell whether a text mentions a user."""
        return mentions_user(text, username, (each.username for each in self.group.members))

    def is_muted(self, now: int) -> bool:
        """Tell whether the group is muted."""
        return now < self.muted_until

    def load(self, messages: Iterable[Message]) -> None:
        """Replace the loaded messages."""
        self.messages = {each.sequence_num: each for each in messages}
        self.is_loaded = True

    def add(self, message: Message) -> None:
        """Add a message, unless it is before or after the loaded window."""
        if self.has_earlier and message.sequence_num < min(self.messages, default=0):
            return
        if self.has_later and message.sequence_num > max(self.messages, default=0):
            return
        is_last = message.sequence_num > next(reversed(self.messages), 0)
        self.messages[message.sequence_num] = message
        if not is_last:  # stored, but not reported, before a crash
            self.messages = dict(sorted(self.messages.items()))

    def notice(self, text: str, at: int, *, is_error: bool = False) -> None:
        """Add a notice after the last message."""
        self.notices.append(Notice(self.fetched_up_to, at, text, is_error))
        del self.notices[:-MAX_NOTICES]

    def items(self, now: int) -> Iterator[Message | Notice | PendingMessage]:
        """Yield what is shown, in order: unexpired messages with notices between them, then pending messages."""
        notices = list(self.notices)
        for number, message in self.messages.items():
            while notices and notices[0].after < number:
                yield notices.pop(0)
            if not message.is_gone(now):
                yield message
        yield from notices
        yield from (each for each in self.pending if not (each.is_stored or each.is_cancelled))


class Rooms:
    """All groups of the user, and invites."""

    def __init__(self, user_id: UUID) -> None:
        self.user_id = user_id
        self.all: dict[UUID, Room] = {}
        self.invites: tuple[InviteInfo, ...] = ()
        self._names: dict[UUID, str] = {}
        self._old_names: dict[UUID, str] = {}

    def ordered(self) -> list[Room]:
        """Return the groups by name."""
        return sorted(self.all.values(), key=lambda each: each.name.lower())

    def name_of(self, group_id: UUID) -> str:
        """Return the current or last known name of a group."""
        room = self.all.get(group_id)
        return room.name if room else self._old_names.get(group_id, "a group")

    def by_name(self, name: str) -> Room | None:
        """Find a group by its name, its title, or an unambiguous beginning of either."""
        rooms = self.all.values()
        found = find_by_name(name, rooms, lambda each: each.group.group_name) or find_by_name(
            name, rooms, lambda each: each.label
        )
        found = found or find_by_name(name, rooms, lambda each: each.group.alias)
        matches = [each for each in rooms if any(it.lower().startswith(name.lower()) for it in each.names)]
        return found or (matches[0] if name and len(matches) == 1 else None)

    def known_name(self, user_id: UUID) -> str | None:
        """Return the username of a user, or None. Aliases are not unique."""
        return self._names.get(user_id)

    def display_name(self, user_id: UUID) -> str:
        """Return the name of a user, or a placeholder."""
        return self._names.get(user_id, "unknown user")

    def set_name(self, user_id: UUID, username: str) -> None:
        """Record a user's name."""
        self._names[user_id] = formatting.display_name(username)

    def member(self, room: Room, username: str) -> UUID | None:
        """Find a member by the exact name: bob and Bob are two users."""
        return next((each.user_id for each in room.group.members if each.username == username), None)

    def unsent_count(self) -> int:
        """Return the number of unsent messages."""
        drafts = [each for room in self.all.values() for each in room.pending]
        return sum(each.number is None and not (each.is_stored or each.is_cancelled) for each in drafts)

    def update(self, groups: Sequence[GroupDetails], now: int) -> None:
        """Replace the groups by their current state, and add notices about changes."""
        for group in groups:
            for each in group.members:
                self.set_name(each.user_id, each.username)
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
        """Remove a group."""
        room = self.all.pop(group_id, None)
        if room:
            self._old_names[group_id] = room.name
        return room


def find_by_name(name: str, things: Iterable[T], name_of: Callable[[T], str]) -> T | None:
    """Return the thing with this name, or the only one with it in another case."""
    found = {name_of(each): each for each in things}
    if name in found:
        return found[name]
    close = [each for key, each in found.items() if key.lower() == name.lower()]
    return close[0] if len(close) == 1 else None


def changes(old: GroupDetails, new: GroupDetails, user_id: UUID) -> Iterator[str]:
    """Describe the changes of a group, except what was done to the user's own membership."""
    before, after = ({each.user_id: each for each in group.members} for group in (old, new))
    for each in new.members:
        if each.user_id not in before:
            yield f"{_who(each.user_id, each.username, user_id)} joined"
    for each in old.members:
        if each.user_id not in after:
            yield f"{formatting.display_name(each.username)} is no longer a member"
    for each in new.members:
        if each.user_id in before and before[each.user_id].role != each.role:
            who = _who(each.user_id, each.username, user_id, be=True)
            yield f"{who} now an admin" if each.role == _ADMIN else f"{who} no longer an admin"
    yield from _settings(old, new)


def _settings(old: GroupDetails, new: GroupDetails) -> Iterator[str]:
    if old.group_name != new.group_name:
        yield f"the group was renamed to {formatting.display_name(new.group_name)}"
    if old.alias != new.alias:
        yield f"the title is now {formatting.sanitize(new.alias)}" if new.alias else "the title was removed"
    if old.visibility != new.visibility:
        yield "the group is now public" if new.visibility == "public" else "the group is now private"


def _who(who: UUID, username: str, user_id: UUID, *, be: bool = False) -> str:
    name = "you" if who == user_id else formatting.display_name(username)
    return name + (" are" if who == user_id else " is") * be


def missing_fetchers(room: Room, names: Mapping[UUID, str] | None = None) -> list[str]:
    """Return the members who have not fetched all messages of a delete-after-fetch group; only admins get them."""
    known = {each.user_id: each.username for each in room.group.members} | dict(names or {})
    holding = room.retention.held_by if room.retention else ()
    return [formatting.display_name(known[each]) if each in known else "unknown user" for each in holding]
