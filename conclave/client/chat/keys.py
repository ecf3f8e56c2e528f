"""Whose keys are known, as the chat shows them and lets them be judged."""

from collections.abc import Callable
from uuid import UUID

from conclave.client import events as n
from conclave.client.chat import trust
from conclave.client.chat.observer import Listener
from conclave.client.chat.rooms import Room, Rooms
from conclave.client.chat.send_queue import SendQueue
from conclave.client.codec import Codec
from conclave.client.encryption.view import GroupView, KnownKey

GRAVE = ("refused", "stranger", "replaced", "restored")
"""Kinds of notices that are shown as something wrong."""


class Keys:
    """The keys of a conversation: a codec, and what is told of it in the rooms."""

    def __init__(
        self, codec: Codec, rooms: Rooms, send_queue: SendQueue, listener: Listener, now: Callable[[], int]
    ) -> None:
        """``now``: the server's time."""
        self._codec = codec
        self._rooms = rooms
        self._outbox = send_queue
        self._listener = listener
        self._now = now
        self._told: set[tuple[UUID, str]] = set()

    @property
    def encrypts(self) -> bool:
        """Whether the server cannot read what is sent."""
        return self._codec.encrypts

    @property
    def fingerprint(self) -> str:
        """The user's own; "" if nothing is encrypted."""
        return self._codec.fingerprint

    def view(self, room: Room) -> GroupView:
        """Return how a group is encrypted."""
        return self._codec.view(room.group.group_id)

    def known(self, user_id: UUID, room: Room | None) -> KnownKey | None:
        """Return the key that a user has in a group, or as it was seen last: in another group it may be another."""
        members = self.view(room).members if room else ()
        return next((each for each in members if each.user_id == user_id), None) or self._codec.known_key(user_id)

    def judge(self, key: KnownKey, *, is_compared: bool) -> bool:
        """Note what the user thinks of a key, and send what has waited for that. Return False if it is another now."""
        note = self._codec.verify if is_compared else self._codec.accept
        is_done = note(key.user_id, key.fingerprint)
        for room in self._rooms.all.values():
            self._outbox.judged(room)
            self._listener.room_changed(room.group.group_id)
        return is_done

    def hear(self, news: n.EncryptionNews) -> None:
        """Show in a group what has happened to its encryption; a key that has changed loudly."""
        room = self._rooms.all.get(news.group_id)
        if isinstance(news, n.KeyChanged):
            self._hear_of_change(news, room)
        if room is None:
            return
        if isinstance(news, n.EncryptionNotice):
            who = f"{self._rooms.called(news.user_id)}: " if news.user_id else ""
            whom = f" ({self._rooms.called(news.other_id)})" if news.other_id else ""
            room.notice(f"{who}{news.sentence}{whom}", self._now(), is_bad=news.kind in GRAVE)
        self._outbox.release(room)
        self._listener.room_changed(news.group_id)

    def _hear_of_change(self, news: n.KeyChanged, room: Room | None) -> None:
        text = trust.noticed_change(self._rooms.called(news.user_id), was_verified=news.was_verified)
        if room:
            room.notice(text, self._now(), is_bad=True)
        if (news.user_id, news.fingerprint) not in self._told:  # each group has news of its own
            self._told.add((news.user_id, news.fingerprint))
            self._listener.say(text, is_bad=True)
