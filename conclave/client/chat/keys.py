"""Members' keys in a conversation: what is known of them, and the user's decisions."""

from collections.abc import Callable
from uuid import UUID

from conclave.client import events as n
from conclave.client.chat import trust
from conclave.client.chat.observer import ConversationObserver
from conclave.client.chat.rooms import Room, Rooms
from conclave.client.chat.send_queue import SendQueue
from conclave.client.codec import Codec
from conclave.client.encryption.view import GroupView, KnownKey

ERROR_KINDS = ("refused", "stranger", "replaced", "restored")
"""Kinds of notices that are shown as errors."""


class ConversationKeys:
    """The keys of a conversation: a codec, and notices about it in the rooms."""

    def __init__(
        self, codec: Codec, rooms: Rooms, send_queue: SendQueue, observer: ConversationObserver, now: Callable[[], int]
    ) -> None:
        """``now``: the server's time."""
        self._codec = codec
        self._rooms = rooms
        self._send_queue = send_queue
        self._observer = observer
        self._now = now
        self._announced: set[tuple[UUID, str]] = set()

    @property
    def encrypts(self) -> bool:
        """Whether messages are encrypted end to end."""
        return self._codec.encrypts

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the user's own key; "" without encryption."""
        return self._codec.fingerprint

    def view(self, room: Room) -> GroupView:
        """Return the encryption status of a group."""
        return self._codec.view(room.group.group_id)

    def key_of(self, user_id: UUID, room: Room | None) -> KnownKey | None:
        """Return a user's key in a group, or the last known one: keys may differ between groups."""
        members = self.view(room).members if room else ()
        return next((each for each in members if each.user_id == user_id), None) or self._codec.known_key(user_id)

    def record_decision(self, key: KnownKey, *, is_compared: bool) -> bool:
        """Record the decision about a key, and send what waited for it. Return False if the key has changed again."""
        note = self._codec.verify if is_compared else self._codec.accept
        is_done = note(key.user_id, key.fingerprint)
        for room in self._rooms.all.values():
            self._send_queue.keys_reviewed(room)
            self._observer.room_changed(room.group.group_id)
        return is_done

    def handle(self, news: n.EncryptionNews) -> None:
        """Add a notice of an encryption event to its group; announce changed keys to the user."""
        room = self._rooms.all.get(news.group_id)
        if isinstance(news, n.KeyChanged):
            self._handle_change(news, room)
        if room is None:
            return
        if isinstance(news, n.EncryptionNotice):
            who = f"{self._rooms.display_name(news.user_id)}: " if news.user_id else ""
            whom = f" ({self._rooms.display_name(news.other_id)})" if news.other_id else ""
            room.notice(f"{who}{news.sentence}{whom}", self._now(), is_error=news.kind in ERROR_KINDS)
        self._send_queue.release(room)
        self._observer.room_changed(news.group_id)

    def _handle_change(self, news: n.KeyChanged, room: Room | None) -> None:
        text = trust.change_notice(self._rooms.display_name(news.user_id), was_verified=news.was_verified)
        if room:
            room.notice(text, self._now(), is_error=True)
        if (news.user_id, news.fingerprint) not in self._announced:  # each group has its own news
            self._announced.add((news.user_id, news.fingerprint))
            self._observer.show_status(text, is_error=True)
