"""What goes on between the server and the screen: follows the news, sends what was typed, keeps the rooms right.

It knows nothing of textual: a user interface learns by its ``Listener`` what to show anew.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from types import TracebackType
from typing import Self
from uuid import UUID

from conclave.client import events as n
from conclave.client.api import Client
from conclave.client.chat import formatting, loading
from conclave.client.chat.attention import Attention
from conclave.client.chat.background import Background
from conclave.client.chat.keys import Keys
from conclave.client.chat.lifetimes import Lifetimes
from conclave.client.chat.observer import Listener
from conclave.client.chat.rooms import Room, Rooms
from conclave.client.chat.searching import Finder
from conclave.client.chat.send_queue import SendQueue
from conclave.client.chat.unsent import Unsent
from conclave.client.codec import Codec
from conclave.client.errors import ClientError, DiskError, NoAnswerError, ResourceError, SessionOverError
from conclave.client.history.store import History
from conclave.client.retry import Backoff
from conclave.client.sync import Sync
from conclave.wire import events as protocol

RENEWED_AFTER = 0.2
"""After an event the groups are read again, at most five times a second."""

HOLDING_READ_EVERY = 10.0
"""Who holds a group back is read again every 10 seconds while it is open: no event tells that somebody has fetched."""

FETCHED_EVERY = 30.0
"""The open group is fetched every 30 seconds: no event tells of what the user sends from another device."""

EVENT_FOLLOWS_WITHIN = 1.0
"""If an event says why a group is gone, it comes within a second."""


class Conversation:
    """A user at a server. Use it within ``async with``: it goes on from there until the session is over."""

    def __init__(self, client: Client, history: History, codec: Codec, listener: Listener) -> None:
        """``client``: logged in."""
        self.client = client
        self.history = history
        self.sync = Sync(client, history, codec)
        self.rooms = Rooms(client.session.user_id)
        self._offline: n.Offline | None = n.Offline("connecting", 0)
        self._trouble = ""
        self.open_room: UUID | None = None
        self._listener = listener
        self._untold: set[UUID] = set()
        self._asked_for: set[UUID] = set()
        self._left_lately: set[UUID] = set()
        self._withdrawn: set[tuple[UUID, UUID]] = set()
        self._wants_renewal = asyncio.Event()
        self._renewing = asyncio.Lock()  # or an answer that came late would undo a later one
        self._online = asyncio.Event()
        self._backoff = Backoff()
        self._attention = Attention(history, client.session, listener)
        self.lifetimes = Lifetimes(client, self.rooms, self.now, self.name, self._show)
        self.finder = Finder(history, self.rooms, self._learn_names)
        self._background = Background(listener)
        self._start = self._background.start
        self.unsent = Unsent(codec, self.rooms, self.now)
        self.send_queue = SendQueue(
            self.sync, self._online, self._start, self._count_and_show, listener.held, self.unsent.keep
        )
        self.keys = Keys(codec, self.rooms, self.send_queue, listener, self.now)

    async def __aenter__(self) -> Self:
        await self.sync.__aenter__()
        self.client.transport.on_trouble = self._hear_of_trouble
        for each in (self._follow, self._renew, self._watch_holding, self._look):
            self._start(each())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.transport.on_trouble = lambda _: None
        await self._background.end()
        await self.sync.__aexit__(kind, error, trace)

    @property
    def offline(self) -> str | None:
        """Why there is no connection; None if there is one, as far as is known."""
        return self._offline.why if self._offline else self._trouble or None

    @property
    def is_disk_full(self) -> bool:
        """Whether that is so since nothing can be stored here."""
        return self._offline is not None and self._offline.is_disk

    @property
    def user_id(self) -> UUID:
        """Who the user is."""
        return self.rooms.user_id

    def now(self) -> int:
        """Return the server's time, as far as it is known here."""
        return self.history.now()

    # What the user does.

    def enter(self, group_id: UUID) -> Room | None:
        """Open a group: load its last messages, and note where the unread ones begin."""
        room = self.rooms.all.get(group_id)
        self.open_room = group_id if room else None
        if room:
            with contextlib.suppress(DiskError):  # the next start opens another one
                self.history.open(group_id)
            self._load(room)
            room.found = None
            room.read_before = None if room.unread_from is None else room.unread_from - 1
            if self._online.is_set():
                self._start(self.lifetimes.read(group_id))
                self.sync.request_fetch(group_id)
        return room

    def opens_by_itself(self) -> Room | None:
        """Return the group to open at the start: the one that was open last, or the first one.

        None: there is none, or one of its unread messages destroys itself once it is on a screen.
        """
        rooms = [room for each in self.history.recently_opened() if (room := self.rooms.all.get(each))]
        room = next(iter([*rooms, *self.rooms.ordered()]), None)
        if room is None:
            return None
        unread = self.history.unread(room.group.group_id, self.user_id)
        return None if {*unread} & {*self.history.self_destructing(room.group.group_id)} else room

    def load_earlier(self, room: Room) -> bool:
        """Load a page of messages before those that are loaded. Tell whether there were some."""
        earlier = loading.load_earlier(self.history, room)
        self._learn_names(earlier)
        return bool(earlier)

    def load_later(self, room: Room) -> bool:
        """Load a page of messages after those that are loaded. Tell whether there were some."""
        later = loading.load_later(self.history, room)
        self._learn_names(later)
        return bool(later)

    def load_last(self, room: Room) -> None:
        """Load the newest messages, if they are not: the user wants to be there."""
        room.found = None
        if room.has_later:
            loading.load_last(self.history, room)
            self._learn_names(room.messages.values())

    def seen(self, group_id: UUID, numbers: Iterable[int]) -> None:
        """Note that messages were really on the screen: timers of self-destructing ones begin, in their order."""
        room = self.rooms.all.get(group_id)
        if room:
            self._note_seen(room, numbers)

    def put_aside(self, room: Room) -> None:
        """Count as read what is unread in a group, but self-destructing messages that were not on the screen."""
        room.read_before = None
        self._note_seen(room, None)

    def _note_seen(self, room: Room, numbers: Iterable[int] | None) -> None:
        group_id = room.group.group_id
        unread, read = room.unread, self.history.read_up_to(group_id)
        with contextlib.suppress(DiskError):  # it stays unread, and no timer begins
            self.sync.mark_seen(group_id, numbers)
        is_read_on = self.history.read_up_to(group_id) != read
        if is_read_on and any(each.self_destruct_seconds for each in room.messages.values()):
            self._reload(room)
        self._count(room)
        if is_read_on or room.unread != unread:
            self._show(room)

    def mute(self, room: Room, seconds: int | None) -> None:
        """Have a group not call for so many seconds; 0: it may call again; None: for good."""
        self._attention.mute(room, seconds)
        self._listener.rooms_changed()

    def burn(self, room: Room, seconds: int) -> None:
        """Let what is sent from now on go so many seconds after each has read it; 0: as the group's messages do."""
        room.self_destruct_seconds = seconds
        self._show(room)

    async def answer(self, invite_id: UUID, *, accept: bool) -> None:
        """Accept or decline an invite. Raises ClientError."""
        await (self.client.accept_invite if accept else self.client.decline_invite)(invite_id)
        await self.renew()

    async def withdraw_invite(self, group_id: UUID, user_id: UUID) -> None:
        """Withdraw an invite. Raises ClientError."""
        self._withdrawn.add((group_id, user_id))
        await self.client.cancel_invite(group_id, user_id)

    async def leave(self, group_id: UUID) -> None:
        """Leave a group. Raises ClientError."""
        await self.sync.leave(group_id)
        await self.renew()

    async def renew(self) -> None:
        """Read groups and invites again. Raises ClientError."""
        async with self._renewing:
            self._left_lately.clear()
            found, self.rooms.invites = await self.client.groups(), await self.client.invites()
            # The answer may be older than the news that a group is gone, and would bring it back.
            groups = [each for each in found if each.group_id not in self._left_lately]
            for group_id in self.rooms.all.keys() - {each.group_id for each in groups}:
                self._left(group_id)
            self.rooms.renew(groups, self.now())
            for room in self.unsent.restore():
                self.send_queue.go_on(room)
            for room in list(self.rooms.all.values()):
                self._count(room)
                if room.retention is None:
                    await self.lifetimes.read(room.group.group_id)
        self._listener.rooms_changed()
        if self.open_room:
            self._listener.room_changed(self.open_room)

    async def name(self, user_id: UUID) -> str:
        """Return the name of somebody who need not be a member any more."""
        if self.rooms.person(user_id) is None:
            try:
                username = (await self.client.user_by_id(user_id)).username
            except ResourceError:
                username = "deleted account"
            except ClientError:
                return self.rooms.called(user_id)
            self.rooms.learn(user_id, username)
        return self.rooms.called(user_id)

    # What the server says.

    async def _follow(self) -> None:
        """Follow the news until the session is over."""
        async for each in self.sync:
            await self._on(each)

    async def _on(self, news: n.News) -> None:
        match news:
            case n.Online() | n.Offline():
                self._connection_changed(news)
            case n.MessageArrived():
                self._arrived(news.message)
            case n.MessagesGone():
                self._gone(news)
            case n.TimeCorrected():
                for room in self.rooms.all.values():
                    self._reload(room)
                    self._show(room)
            case n.PolicyChanged():
                self._policy_changed(news)
            case n.GroupGone():
                self._left(news.group_id)
                self.want_renewal()  # one that is under way may have read it as it was
            case n.Lagged() | n.ClockDiffers():
                self._say_of_connection(news)
            case n.KeyChanged() | n.EncryptionChanged() | n.EncryptionNotice():
                self.keys.hear(news)
            case _:
                self._told(news)

    def _connection_changed(self, news: n.Online | n.Offline) -> None:
        if isinstance(news, n.Offline):
            self._offline = news
            self._online.clear()
        else:
            self._offline = None
            self._online.set()
            self.want_renewal()
        self._listener.rooms_changed()

    def _say_of_connection(self, news: n.Lagged | n.ClockDiffers) -> None:
        if isinstance(news, n.ClockDiffers):
            off = f"{formatting.remaining(abs(news.seconds))} {'ahead of' if news.seconds > 0 else 'behind'}"
            self._listener.say(f"The clock of this machine is {off} the server's. Messages go by the server's")
            return
        self._listener.say(f"{formatting.count(news.lost, 'event')} lost on a slow connection; all was read again")
        self.want_renewal()

    def _hear_of_trouble(self, error: NoAnswerError | None) -> None:
        """A request has no answer: the connection may look well for some time yet."""
        self._trouble = str(error) if error else ""
        self._listener.rooms_changed()

    def _told(self, event: protocol.Event) -> None:
        """An event that says only that something is to be read again, or that is for people."""
        name = self.rooms.name_of(event.group_id)
        self._untold.discard(event.group_id)
        match event:
            case protocol.GroupDeleted():
                self._listener.say(f"{name} was deleted, with all its messages")
            case protocol.MemberRemoved() if event.removed_user_id == self.user_id:
                self._listener.say(f"You were removed from {name}; what was here of it is erased", is_bad=True)
            case protocol.MemberRemoved():
                self._start(self._tell_ban(event))
            case protocol.IdentityReset() if not self.keys.encrypts:
                self._start(self._tell_new_keys(event))
            case protocol.InviteReceived():
                who = self.rooms.person(event.inviter_id)
                by = f" by {who}" if who else ""
                self._listener.say(f"You are invited to {formatting.called(event.group_name)}{by}")
            case protocol.InviteCancelled():
                self._listener.say("An invite was withdrawn, or it has expired")
            case protocol.InviteDeclined() if (event.group_id, event.declined_user_id) in self._withdrawn:
                self._withdrawn.discard((event.group_id, event.declined_user_id))
            case protocol.InviteDeclined():
                self._start(self._tell_declined(event))
        self.want_renewal()

    def _arrived(self, message: n.Message) -> None:
        room = self.rooms.all.get(message.group_id)
        if room is None:
            self.want_renewal()
            return
        if message.sender_id == self.user_id:
            self.send_queue.has_arrived(room, message)
        if room.is_loaded:
            loading.add(room, message)
        if self.rooms.person(message.sender_id) is None:
            self.want_renewal()  # somebody came in, of whom no event has told
        self._learn_names([message])
        self._attention.arrived(room, message)
        self._count(room)
        self._show(room)

    def _gone(self, news: n.MessagesGone) -> None:
        room = self.rooms.all.get(news.group_id)
        if room:
            for number in news.sequence_nums:
                room.messages.pop(number, None)
            if room.is_loaded and not room.messages:
                self._load(room)  # there may be earlier ones that stay
            self._count(room)
            self._show(room)

    def _policy_changed(self, news: n.PolicyChanged) -> None:
        room = self.rooms.all.get(news.group_id)
        if room is None:
            return
        loaded = len(room.messages)
        self._reload(room)
        room.went += max(0, loaded - len(room.messages))
        self._start(self.lifetimes.read(news.group_id))
        self._show(room)

    def _left(self, group_id: UUID) -> None:
        """The user is not in a group any more: what was typed for it goes too."""
        self._left_lately.add(group_id)
        self.send_queue.drop(group_id)
        if group_id in self.rooms.all:
            self._untold.add(group_id)
            self._start(self._tell_left(group_id))
        self.rooms.drop(group_id)
        if self.open_room == group_id:
            self.open_room = None
        self._listener.rooms_changed()

    async def _tell_left(self, group_id: UUID) -> None:
        """Say that a group is gone which went without an event: while there was no connection, or from elsewhere."""
        await asyncio.sleep(EVENT_FOLLOWS_WITHIN)
        if group_id in self._untold:
            self._untold.discard(group_id)
            self._listener.say(f"You are not in {self.rooms.name_of(group_id)} any more; what was here of it is erased")

    async def _tell_ban(self, event: protocol.MemberRemoved) -> None:
        """Say that somebody was banned; only admins can know that."""
        room = self.rooms.all.get(event.group_id)
        if room is None or not room.is_admin(self.user_id):
            return
        banned = await self.client.banned(event.group_id)
        if any(each.user_id == event.removed_user_id for each in banned):
            room.notice(f"{await self.name(event.removed_user_id)} is banned from the group", self.now())
            self._show(room)

    async def _tell_new_keys(self, event: protocol.IdentityReset) -> None:
        if room := self.rooms.all.get(event.group_id):
            room.notice(f"{await self.name(event.user_id)} is back with new keys", self.now())
            self._show(room)

    async def _tell_declined(self, event: protocol.InviteDeclined) -> None:
        who, where = await self.name(event.declined_user_id), self.rooms.name_of(event.group_id)
        self._listener.say(
            f"{who} has not taken the invite to {where}: it was declined or withdrawn, or it has expired"
        )

    def _learn_names(self, messages: Iterable[n.Message]) -> None:
        """Ask for the names of senders that are not known, once each."""
        for each in messages:
            if self.rooms.person(each.sender_id) is None and each.sender_id not in self._asked_for:
                self._asked_for.add(each.sender_id)
                self._start(self._learn_name(each.sender_id, each.group_id))

    async def _learn_name(self, user_id: UUID, group_id: UUID) -> None:
        try:
            await self.name(user_id)
        finally:
            self._asked_for.discard(user_id)
        self._listener.room_changed(group_id)

    # How it is kept right.

    def _load(self, room: Room) -> None:
        """Load the last messages of a group, or from its first unread one on."""
        loading.load(self.history, room, self.user_id)
        self._count(room)
        self._learn_names(room.messages.values())

    def _reload(self, room: Room) -> None:
        """Read anew when messages are gone; the others that are loaded stay so."""
        loading.load_again(self.history, room)
        if room.is_loaded and not room.messages:
            self._load(room)  # there may be earlier ones that stay
        self._count(room)

    def _count(self, room: Room) -> None:
        """Note how far a group is here, and how many of its messages are unread. Drafts that came are none any more."""
        group_id = room.group.group_id
        self._attention.count(room)
        room.fetched_up_to = self.history.fetched_up_to(group_id)
        self.send_queue.tidy(room)

    def _count_and_show(self, room: Room) -> None:
        self._count(room)
        self._listener.room_changed(room.group.group_id)

    def _show(self, room: Room) -> None:
        self._listener.room_changed(room.group.group_id)
        self._listener.rooms_changed()

    def want_renewal(self) -> None:
        """Have groups and invites read again soon."""
        self._wants_renewal.set()

    async def _renew(self) -> None:
        """Read groups and invites again whenever an event says that they may have changed."""
        failures = 0
        while True:
            await self._wants_renewal.wait()
            await self._online.wait()
            self._wants_renewal.clear()
            try:
                await self.renew()
            except SessionOverError:
                raise
            except ClientError:
                failures += 1
                self.want_renewal()
                await asyncio.sleep(self._backoff.delay(failures, 1.0))
            else:
                failures = 0
                await asyncio.sleep(RENEWED_AFTER)

    async def _watch_holding(self) -> None:
        """Read again who holds the open group back."""
        while True:
            await asyncio.sleep(HOLDING_READ_EVERY)
            room = self.rooms.all.get(self.open_room) if self.open_room else None
            if room and room.expiry == formatting.AFTER_FETCH and self._online.is_set():
                with contextlib.suppress(ClientError):
                    await self.lifetimes.read(room.group.group_id)

    async def _look(self) -> None:
        """Have the open group fetched from time to time."""
        while True:
            await asyncio.sleep(FETCHED_EVERY)
            if self.open_room and self._online.is_set():
                self.sync.request_fetch(self.open_room)
