"""The conversation with the server: handles news, sends messages, and keeps the rooms up to date.

Independent of textual: a user interface implements ``ConversationObserver``.
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
from conclave.client.chat.background import Background
from conclave.client.chat.keys import ConversationKeys
from conclave.client.chat.observer import ConversationObserver
from conclave.client.chat.retention import RetentionSettings
from conclave.client.chat.rooms import Room, Rooms
from conclave.client.chat.search import MessageFinder
from conclave.client.chat.send_queue import SendQueue
from conclave.client.chat.unread import UnreadCounter
from conclave.client.chat.unsent import UnsentStore
from conclave.client.codec import Codec
from conclave.client.errors import ClientError, DiskError, NoAnswerError, ResourceError, SessionOverError
from conclave.client.history.store import History
from conclave.client.retry import Backoff
from conclave.client.sync import Sync
from conclave.wire import events as protocol

REFRESH_SECONDS = 0.2
"""Events refresh the groups at most five times a second."""

RETENTION_POLL_SECONDS = 10.0
"""Who has not fetched yet is polled every 10 seconds for the open group, since fetching causes no event."""

FETCH_POLL_SECONDS = 30.0
"""The open group is fetched every 30 seconds: messages from the user's other devices cause no event."""

EVENT_WAIT_SECONDS = 1.0
"""An event that explains why a group is gone arrives within a second."""


class Conversation:
    """A user's conversation with a server. Use it within ``async with``; it runs until the session is over."""

    def __init__(self, client: Client, history: History, codec: Codec, observer: ConversationObserver) -> None:
        """``client``: logged in."""
        self.client = client
        self.history = history
        self.sync = Sync(client, history, codec)
        self.rooms = Rooms(client.session.user_id)
        self._offline: n.Offline | None = n.Offline("connecting", 0)
        self._trouble = ""
        self.open_group_id: UUID | None = None
        self._observer = observer
        self._unannounced: set[UUID] = set()
        self._asked_for: set[UUID] = set()
        self._left_lately: set[UUID] = set()
        self._withdrawn: set[tuple[UUID, UUID]] = set()
        self._refresh_requested = asyncio.Event()
        self._refresh_lock = asyncio.Lock()  # a late answer must not overwrite a newer one
        self._online, self._can_send = asyncio.Event(), asyncio.Event()
        self._backoff = Backoff()
        self._unread_counter = UnreadCounter(history, client.session, observer)
        self.retention = RetentionSettings(client, self.rooms, self.now, self.name, self._show)
        self.finder = MessageFinder(history, self.rooms, self._learn_names)
        self._background = Background(observer)
        self._start = self._background.start
        self.unsent = UnsentStore(codec, self.rooms, self.now)
        self.send_queue = SendQueue(
            self.sync, self._can_send, self._start, self._count_and_show, observer.review_keys, self.unsent.save
        )
        self.keys = ConversationKeys(codec, self.rooms, self.send_queue, observer, self.now)

    async def __aenter__(self) -> Self:
        await self.sync.__aenter__()
        self.client.transport.on_trouble = self._record_trouble
        for each in (self._follow, self._refresh_loop, self._poll_retention, self._poll_open_group):
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
        """Why there is no connection; None if there is one."""
        return self._offline.why if self._offline else self._trouble or None

    @property
    def is_disk_full(self) -> bool:
        """Whether the disk is full."""
        return self._offline is not None and self._offline.is_disk

    @property
    def user_id(self) -> UUID:
        """The user's id."""
        return self.rooms.user_id

    def now(self) -> int:
        """Return the server's time, as far as it is known."""
        return self.history.now()

    # Actions of the user.

    def open_group(self, group_id: UUID) -> Room | None:
        """Open a group: load its last messages, and record where the unread ones start."""
        room = self.rooms.all.get(group_id)
        self.open_group_id = group_id if room else None
        if room:
            with contextlib.suppress(DiskError):  # only the next start would open another group
                self.history.open(group_id)
            self._load(room)
            room.found = None
            room.read_before = None if room.unread_from is None else room.unread_from - 1
            if self._online.is_set():
                self._start(self.retention.read(group_id))
                self.sync.request_fetch(group_id)
        return room

    def initial_room(self) -> Room | None:
        """Return the group to open at the start: the last open one, or the first one.

        Return None if there is no group, or if the group has an unread self-destructing message, whose timer would
        start.
        """
        rooms = [room for each in self.history.recently_opened() if (room := self.rooms.all.get(each))]
        room = next(iter([*rooms, *self.rooms.ordered()]), None)
        if room is None:
            return None
        unread = self.history.unread(room.group.group_id, self.user_id)
        return None if {*unread} & {*self.history.self_destructing(room.group.group_id)} else room

    def load_earlier(self, room: Room) -> bool:
        """Load a page of messages before the loaded ones. Return whether there were any."""
        earlier = loading.load_earlier(self.history, room)
        self._learn_names(earlier)
        return bool(earlier)

    def load_later(self, room: Room) -> bool:
        """Load a page of messages after the loaded ones. Return whether there were any."""
        later = loading.load_later(self.history, room)
        self._learn_names(later)
        return bool(later)

    def load_last(self, room: Room) -> None:
        """Load the newest messages, if they are not loaded."""
        room.found = None
        if room.has_later:
            loading.load_last(self.history, room)
            self._learn_names(room.messages.values())

    def mark_seen(self, group_id: UUID, numbers: Iterable[int]) -> None:
        """Record messages that were visible on the screen: the timers of self-destructing ones start, in order."""
        room = self.rooms.all.get(group_id)
        if room:
            self._note_seen(room, numbers)

    def mark_read(self, room: Room) -> None:
        """Mark a group as read, except self-destructing messages that were not on the screen."""
        room.read_before = None
        self._note_seen(room, None)

    def _note_seen(self, room: Room, numbers: Iterable[int] | None) -> None:
        group_id = room.group.group_id
        unread, read = room.unread, self.history.read_up_to(group_id)
        with contextlib.suppress(DiskError):  # they stay unread, and no timer starts
            self.sync.mark_seen(group_id, numbers)
        is_read_on = self.history.read_up_to(group_id) != read
        if is_read_on and any(each.self_destruct_seconds for each in room.messages.values()):
            self._reload(room)
        self._count(room)
        if is_read_on or room.unread != unread:
            self._show(room)

    def mute(self, room: Room, seconds: int | None) -> None:
        """Mute a group for some seconds; 0: unmute; None: until unmuted."""
        self._unread_counter.mute(room, seconds)
        self._observer.rooms_changed()

    def set_self_destruct(self, room: Room, seconds: int) -> None:
        """Set the timer of messages sent from now on, in seconds after reading; 0: none."""
        room.self_destruct_seconds = seconds
        self._show(room)

    async def answer_invite(self, invite_id: UUID, *, accept: bool) -> None:
        """Accept or decline an invite. Raises ClientError."""
        await (self.client.accept_invite if accept else self.client.decline_invite)(invite_id)
        await self.refresh()

    async def withdraw_invite(self, group_id: UUID, user_id: UUID) -> None:
        """Withdraw an invite. Raises ClientError."""
        self._withdrawn.add((group_id, user_id))
        await self.client.cancel_invite(group_id, user_id)

    async def leave(self, group_id: UUID) -> None:
        """Leave a group. Raises ClientError."""
        await self.sync.leave(group_id)
        await self.refresh()

    async def refresh(self) -> None:
        """Read groups and invites again. Raises ClientError."""
        async with self._refresh_lock:
            self._left_lately.clear()
            found, self.rooms.invites = await self.client.groups(), await self.client.invites()
            # The answer may be older than the news that a group is gone.
            groups = [each for each in found if each.group_id not in self._left_lately]
            for group_id in self.rooms.all.keys() - {each.group_id for each in groups}:
                self._remove_group(group_id)
            self.rooms.update(groups, self.now())
            for room in self.unsent.restore():
                self.send_queue.resume(room)
            for room in list(self.rooms.all.values()):
                self._count(room)
                if room.retention is None:
                    await self.retention.read(room.group.group_id)
        self._observer.rooms_changed()
        if self.open_group_id:
            self._observer.room_changed(self.open_group_id)

    async def name(self, user_id: UUID) -> str:
        """Return the name of a user, who may no longer be a member."""
        if self.rooms.known_name(user_id) is None:
            try:
                username = (await self.client.user_by_id(user_id)).username
            except ResourceError:
                username = "deleted account"
            except ClientError:
                return self.rooms.display_name(user_id)
            self.rooms.set_name(user_id, username)
        return self.rooms.display_name(user_id)

    # News from the server.

    async def _follow(self) -> None:
        """Handle news until the session is over."""
        async for each in self.sync:
            await self._handle_news(each)

    async def _handle_news(self, news: n.News) -> None:
        match news:
            case n.Online() | n.Offline():
                self._connection_changed(news)
            case n.MessageArrived():
                self._add_message(news.message)
            case n.MessagesGone():
                self._remove_messages(news)
            case n.TimeCorrected():
                for room in self.rooms.all.values():
                    self._reload(room)
                    self._show(room)
            case n.PolicyChanged():
                self._policy_changed(news)
            case n.GroupGone():
                self._remove_group(news.group_id)
                self.request_refresh()  # a refresh in progress may have read it before
            case n.Lagged() | n.ClockDiffers():
                self._show_connection_news(news)
            case n.KeyChanged() | n.EncryptionChanged() | n.EncryptionNotice():
                self.keys.handle(news)
            case _:
                self._handle_event(news)

    def _connection_changed(self, news: n.Online | n.Offline) -> None:
        if isinstance(news, n.Offline):
            self._offline = news
            self._online.clear()
        else:
            self._offline = None
            self._online.set()
            self.request_refresh()
        self._update_connection()

    def _show_connection_news(self, news: n.Lagged | n.ClockDiffers) -> None:
        if isinstance(news, n.ClockDiffers):
            off = f"{formatting.time_left(abs(news.seconds))} {'ahead of' if news.seconds > 0 else 'behind'}"
            self._observer.show_status(f"This computer's clock is {off} the server's. Messages expire by the server's")
            return
        self._observer.show_status(f"{formatting.count(news.lost, 'event')} lost on a slow connection; reloading")
        self.request_refresh()

    def _record_trouble(self, error: NoAnswerError | None) -> None:
        """Record that a request had no answer, before the stream notices; None: a later one had an answer."""
        self._trouble = str(error) if error else ""
        if error and (room := next(iter(self.rooms.all.values()), None)):
            self.sync.request_fetch(room.group.group_id)  # tells whether the server answers again
        self._update_connection()

    def _update_connection(self) -> None:
        """Show whether there is a connection, and send only then: what waits stays an encrypted draft."""
        if self.offline is None:
            self._can_send.set()
        else:
            self._can_send.clear()
        self._observer.rooms_changed()

    def _handle_event(self, event: protocol.Event) -> None:
        """Handle an event that causes a refresh, or a message to the user."""
        name = self.rooms.name_of(event.group_id)
        self._unannounced.discard(event.group_id)
        match event:
            case protocol.GroupDeleted():
                self._observer.show_status(f"{name} was deleted")
            case protocol.MemberRemoved() if event.removed_user_id == self.user_id:
                self._observer.show_status(
                    f"You were removed from {name}. Its local messages were erased", is_error=True
                )
            case protocol.MemberRemoved():
                self._start(self._announce_ban(event))
            case protocol.IdentityReset() if not self.keys.encrypts:
                self._start(self._announce_new_keys(event))
            case protocol.InviteReceived():
                who = self.rooms.known_name(event.inviter_id)
                by = f" by {who}" if who else ""
                self._observer.show_status(f"You are invited to {formatting.display_name(event.group_name)}{by}")
            case protocol.InviteCancelled():
                self._observer.show_status("An invite was withdrawn or has expired")
            case protocol.InviteDeclined() if (event.group_id, event.declined_user_id) in self._withdrawn:
                self._withdrawn.discard((event.group_id, event.declined_user_id))
            case protocol.InviteDeclined():
                self._start(self._announce_declined(event))
        self.request_refresh()

    def _add_message(self, message: n.Message) -> None:
        room = self.rooms.all.get(message.group_id)
        if room is None:
            self.request_refresh()
            return
        if message.sender_id == self.user_id:
            self.send_queue.confirm(room, message)
        if room.is_loaded:
            loading.add(room, message)
        if self.rooms.known_name(message.sender_id) is None:
            self.request_refresh()  # a new member without an event
        self._learn_names([message])
        self._unread_counter.handle_message(room, message)
        self._count(room)
        self._show(room)

    def _remove_messages(self, news: n.MessagesGone) -> None:
        room = self.rooms.all.get(news.group_id)
        if room:
            for number in news.sequence_nums:
                room.messages.pop(number, None)
            if room.is_loaded and not room.messages:
                self._load(room)  # earlier ones may remain
            self._count(room)
            self._show(room)

    def _policy_changed(self, news: n.PolicyChanged) -> None:
        room = self.rooms.all.get(news.group_id)
        if room is None:
            return
        loaded = len(room.messages)
        self._reload(room)
        room.hidden_count += max(0, loaded - len(room.messages))
        self._start(self.retention.read(news.group_id))
        self._show(room)

    def _remove_group(self, group_id: UUID) -> None:
        """Remove a group that the user has left, with messages not sent yet."""
        self._left_lately.add(group_id)
        self.send_queue.drop(group_id)
        if group_id in self.rooms.all:
            self._unannounced.add(group_id)
            self._start(self._announce_left(group_id))
        self.rooms.drop(group_id)
        if self.open_group_id == group_id:
            self.open_group_id = None
        self._observer.rooms_changed()

    async def _announce_left(self, group_id: UUID) -> None:
        """Announce a group that is gone without an event, for example while there was no connection."""
        await asyncio.sleep(EVENT_WAIT_SECONDS)
        if group_id in self._unannounced:
            self._unannounced.discard(group_id)
            self._observer.show_status(
                f"You are no longer in {self.rooms.name_of(group_id)}. Its local messages were erased"
            )

    async def _announce_ban(self, event: protocol.MemberRemoved) -> None:
        """Announce a ban to admins, who can see it."""
        room = self.rooms.all.get(event.group_id)
        if room is None or not room.is_admin(self.user_id):
            return
        banned = await self.client.banned(event.group_id)
        if any(each.user_id == event.removed_user_id for each in banned):
            room.notice(f"{await self.name(event.removed_user_id)} was banned", self.now())
            self._show(room)

    async def _announce_new_keys(self, event: protocol.IdentityReset) -> None:
        if room := self.rooms.all.get(event.group_id):
            room.notice(f"{await self.name(event.user_id)} has new keys", self.now())
            self._show(room)

    async def _announce_declined(self, event: protocol.InviteDeclined) -> None:
        who, where = await self.name(event.declined_user_id), self.rooms.name_of(event.group_id)
        self._observer.show_status(f"The invite of {who} to {where} was declined or withdrawn, or has expired")

    def _learn_names(self, messages: Iterable[n.Message]) -> None:
        """Request the names of unknown senders, once each."""
        for each in messages:
            if self.rooms.known_name(each.sender_id) is None and each.sender_id not in self._asked_for:
                self._asked_for.add(each.sender_id)
                self._start(self._learn_name(each.sender_id, each.group_id))

    async def _learn_name(self, user_id: UUID, group_id: UUID) -> None:
        try:
            await self.name(user_id)
        finally:
            self._asked_for.discard(user_id)
        self._observer.room_changed(group_id)

    # Internal state.

    def _load(self, room: Room) -> None:
        """Load the last messages of a group, or from its first unread one."""
        loading.load(self.history, room, self.user_id)
        self._count(room)
        self._learn_names(room.messages.values())

    def _reload(self, room: Room) -> None:
        """Reload a group after messages are gone."""
        loading.reload(self.history, room)
        if room.is_loaded and not room.messages:
            self._load(room)  # earlier ones may remain
        self._count(room)

    def _count(self, room: Room) -> None:
        """Update unread counts and the fetched number, and remove pending messages that were delivered."""
        group_id = room.group.group_id
        self._unread_counter.count(room)
        room.fetched_up_to = self.history.fetched_up_to(group_id)
        self.send_queue.remove_delivered(room)

    def _count_and_show(self, room: Room) -> None:
        self._count(room)
        self._observer.room_changed(room.group.group_id)

    def _show(self, room: Room) -> None:
        self._observer.room_changed(room.group.group_id)
        self._observer.rooms_changed()

    def request_refresh(self) -> None:
        """Refresh groups and invites soon."""
        self._refresh_requested.set()

    async def _refresh_loop(self) -> None:
        """Refresh groups and invites when requested."""
        failures = 0
        while True:
            await self._refresh_requested.wait()
            await self._online.wait()
            self._refresh_requested.clear()
            try:
                await self.refresh()
            except SessionOverError:
                raise
            except ClientError:
                failures += 1
                self.request_refresh()
                await asyncio.sleep(self._backoff.delay(failures, 1.0))
            else:
                failures = 0
                await asyncio.sleep(REFRESH_SECONDS)

    async def _poll_retention(self) -> None:
        """Poll who has not fetched the messages of the open group."""
        while True:
            await asyncio.sleep(RETENTION_POLL_SECONDS)
            room = self.rooms.all.get(self.open_group_id) if self.open_group_id else None
            if room and room.expiry == formatting.AFTER_FETCH and self._online.is_set():
                with contextlib.suppress(ClientError):
                    await self.retention.read(room.group.group_id)

    async def _poll_open_group(self) -> None:
        """Fetch the open group periodically."""
        while True:
            await asyncio.sleep(FETCH_POLL_SECONDS)
            if self.open_group_id and self._online.is_set():
                self.sync.request_fetch(self.open_group_id)
