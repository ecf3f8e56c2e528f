"""What a client hears: the events of the protocol, and what it makes of them for an application."""

from dataclasses import dataclass, field
from uuid import UUID

from conclave.wire.events import Event


@dataclass(frozen=True)
class Lagged:
    """The stream was read too slowly: ``lost`` events are gone, and the state has to be read again."""

    lost: int


@dataclass(frozen=True)
class Message:
    """A message as the local history has it."""

    group_id: UUID
    sequence_num: int
    sender_id: UUID
    text: str | None = field(repr=False)  # it does not belong into logs
    """None if the codec could not read it."""
    created_at: int
    self_destruct_seconds: int
    """Its lifetime once it was read; it counts from when ``Sync.read`` covers it."""
    gone_at: int | None
    """The first Unix second of the server at which it is gone, as far as is known now; None: it stays."""

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
class ClockDiffers:
    """The machine's clock is ``seconds`` ahead of the server's; negative: behind. Lifetimes go by the server's."""

    seconds: int


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
    """There is no connection; it is tried again in ``retry_in`` seconds.

    ``is_disk``: the disk is to blame, on which nothing can be stored.
    """

    why: str
    """For people."""
    retry_in: float
    is_disk: bool = False


@dataclass(frozen=True)
class KeyChanged:
    """A person's key is another than the one that was known: say so loudly, in the group and before anything is sent.

    It may be a new device, or somebody who sits between. ``former`` and ``fingerprint`` are 64 hexadecimal digits;
    ``was_verified``: the former one had been compared.
    """

    group_id: UUID
    user_id: UUID
    former: str
    fingerprint: str
    was_verified: bool


@dataclass(frozen=True)
class EncryptionChanged:
    """A group's encryption is not what it was: what ``Codec.view`` returns is to be read again."""

    group_id: UUID


@dataclass(frozen=True)
class EncryptionNotice:
    """What people should know of a group's encryption, in one sentence. ``kind`` is what to decide by:

    "joined": what was said before the user came cannot be read. "returned": the user came back with new keys, and what
    was said while they were missing cannot be read. "refused": something that the server handed out was not what it
    seems, and was not taken; ``user_id``: from whom it seems to be. "stranger": ``user_id`` has keys of the group
    without being a member. "mended": such keys were taken away. "replaced": another device of the account has taken the
    place of this one, which stays out until ``Sync.reset``. "restored": the keys here were an old copy, and are not
    used. "lost": this client could not follow the others, or its state of the group cannot be used; after both it comes
    in again by itself. "removed": ``user_id`` has taken the keys of ``other_id`` out of the group. "welcomed":
    ``user_id`` has signed the welcome by which the user came in.
    """

    group_id: UUID
    kind: str
    sentence: str
    user_id: UUID | None = None
    other_id: UUID | None = None


EncryptionNews = KeyChanged | EncryptionChanged | EncryptionNotice
"""News of a group's encryption."""

News = (
    Event
    | Lagged
    | MessageArrived
    | MessagesGone
    | TimeCorrected
    | ClockDiffers
    | GroupGone
    | PolicyChanged
    | EncryptionNews
    | Online
    | Offline
)
