"""What a client hears: the events of the protocol, and what it makes of them for an application."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID


@dataclass(frozen=True)
class NewMessage:
    """A message was sent."""

    wire: ClassVar[str] = "NewMessageEvent"

    group_id: UUID
    sequence_num: int
    sender_id: UUID


@dataclass(frozen=True)
class GroupUpdate:
    """Something of a group changed: ``update_type`` is commit, group_settings or role_change."""

    wire: ClassVar[str] = "GroupUpdateEvent"

    group_id: UUID
    update_type: str


@dataclass(frozen=True)
class WelcomeWaits:
    """A welcome waits for the user, who is a member now."""

    wire: ClassVar[str] = "WelcomeEvent"

    group_id: UUID
    group_alias: str


@dataclass(frozen=True)
class MemberRemoved:
    """Somebody is no longer a member."""

    wire: ClassVar[str] = "MemberRemovedEvent"

    group_id: UUID
    removed_user_id: UUID


@dataclass(frozen=True)
class IdentityReset:
    """A member has joined with new keys."""

    wire: ClassVar[str] = "IdentityResetEvent"

    group_id: UUID
    user_id: UUID


@dataclass(frozen=True)
class InviteReceived:
    """The user is invited."""

    wire: ClassVar[str] = "InviteReceivedEvent"

    invite_id: UUID
    group_id: UUID
    group_name: str
    group_alias: str
    inviter_id: UUID


@dataclass(frozen=True)
class InviteDeclined:
    """An invite by the user was declined, cancelled or withdrawn, or it expired."""

    wire: ClassVar[str] = "InviteDeclinedEvent"

    group_id: UUID
    declined_user_id: UUID


@dataclass(frozen=True)
class InviteCancelled:
    """The user is not invited any more."""

    wire: ClassVar[str] = "InviteCancelledEvent"

    group_id: UUID


@dataclass(frozen=True)
class GroupDeleted:
    """A group is gone."""

    wire: ClassVar[str] = "GroupDeletedEvent"

    group_id: UUID


@dataclass(frozen=True)
class MessageRedacted:
    """A self-destructing message came to its end for the user."""

    wire: ClassVar[str] = "MessageRedactedEvent"

    group_id: UUID
    sequence_num: int


@dataclass(frozen=True)
class Lagged:
    """The stream was read too slowly: ``lost`` events are gone, and the state has to be read again."""

    lost: int


Event = (
    NewMessage
    | GroupUpdate
    | WelcomeWaits
    | MemberRemoved
    | IdentityReset
    | InviteReceived
    | InviteDeclined
    | InviteCancelled
    | GroupDeleted
    | MessageRedacted
)

EVENTS: dict[str, type[Event]] = {
    "new_message": NewMessage,
    "group_update": GroupUpdate,
    "welcome": WelcomeWaits,
    "member_removed": MemberRemoved,
    "identity_reset": IdentityReset,
    "invite_received": InviteReceived,
    "invite_declined": InviteDeclined,
    "invite_cancelled": InviteCancelled,
    "group_deleted": GroupDeleted,
    "message_redacted": MessageRedacted,
}
"""The events by their names on a stream."""


@dataclass(frozen=True)
class Message:
    """A message as the local history has it. ``text``: None if the codec could not read it.

    ``gone_at``: the first Unix second of the server at which it is gone, as far as is known now; None: it stays.
    ``self_destruct_seconds``: its lifetime once it was read; it counts from when ``Sync.read`` covers it.
    """

    group_id: UUID
    sequence_num: int
    sender_id: UUID
    text: str | None = field(repr=False)  # it does not belong into logs
    created_at: int
    self_destruct_seconds: int
    gone_at: int | None

    def is_gone(self, now: int) -> bool:
        """Tell whether it may not be shown any more at the Unix second ``now``."""
        return self.gone_at is not None and self.gone_at <= now


@dataclass(frozen=True)
class MessageArrived:
    """A message that is new to the application: each once, and those of a group in their order.

    What the server has left out while its clock was in doubt comes late.
    """

    message: Message


@dataclass(frozen=True)
class MessagesGone:
    """Messages are gone from the local history: do not show them any longer."""

    group_id: UUID
    sequence_nums: tuple[int, ...]


@dataclass(frozen=True)
class TimeCorrected:
    """A time was wrong by which messages were hidden: they may be there again, so read what you show again."""


@dataclass(frozen=True)
class GroupGone:
    """The user is not in a group any more, or it is deleted. What it had here is erased."""

    group_id: UUID


@dataclass(frozen=True)
class PolicyChanged:
    """How long messages of a group live now: -1 for ever, 0 until all have fetched, or seconds."""

    group_id: UUID
    effective_expiry_seconds: int


@dataclass(frozen=True)
class Online:
    """The stream of events is open. What was missed follows."""


@dataclass(frozen=True)
class Offline:
    """There is no connection; it is tried again in ``retry_in`` seconds. ``why``: for people."""

    why: str
    retry_in: float


News = Event | Lagged | MessageArrived | MessagesGone | TimeCorrected | GroupGone | PolicyChanged | Online | Offline
