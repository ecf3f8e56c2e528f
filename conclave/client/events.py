"""News for the application: the protocol's events, and further ones that the library derives from them."""

from dataclasses import dataclass, field
from uuid import UUID

from conclave.wire.events import Event


@dataclass(frozen=True)
class Lagged:
    """The stream was read too slowly: ``lost`` events were dropped, and the state must be read again."""

    lost: int


@dataclass(frozen=True)
class Message:
    """A message of the local history."""

    group_id: UUID
    sequence_num: int
    sender_id: UUID
    text: str | None = field(repr=False)  # must not be logged
    """None if the codec could not decode it."""
    created_at: int
    self_destruct_seconds: int
    """Lifetime after the message is read, which starts when ``Sync.read`` includes it."""
    gone_at: int | None
    """The Unix second of the server at which it expires, as currently known; None: never."""

    def is_gone(self, now: int) -> bool:
        """Return whether it must not be shown at the Unix second ``now``."""
        return self.gone_at is not None and self.gone_at <= now


@dataclass(frozen=True)
class MessageArrived:
    """A message is new to the application. Each is reported once, in order within a group.

    Messages that the server left out while its clock was in doubt arrive late.
    """

    message: Message


@dataclass(frozen=True)
class MessagesGone:
    """Messages were erased from the local history: remove them from the screen."""

    group_id: UUID
    sequence_nums: tuple[int, ...]


@dataclass(frozen=True)
class TimeCorrected:
    """Messages were hidden by a wrong time, and may reappear: reload the messages on the screen."""


@dataclass(frozen=True)
class ClockDiffers:
    """The machine's clock is ``seconds`` ahead of the server's; negative: behind. Lifetimes follow the server's."""

    seconds: int


@dataclass(frozen=True)
class GroupGone:
    """The user is no longer a member, or the group was deleted. Its messages were erased from the local history."""

    group_id: UUID


@dataclass(frozen=True)
class PolicyChanged:
    """The effective lifetime of a group's messages changed: -1 unlimited, 0 until all have fetched, or seconds."""

    group_id: UUID
    effective_expiry_seconds: int


@dataclass(frozen=True)
class Online:
    """The stream of events is open. Missed messages follow."""


@dataclass(frozen=True)
class Offline:
    """The connection is lost; the next attempt is in ``retry_in`` seconds.

    ``is_disk``: the reason is that the local disk cannot be written.
    """

    why: str
    """The reason, as text for the user."""
    retry_in: float
    is_disk: bool = False


@dataclass(frozen=True)
class KeyChanged:
    """A user's key has changed: warn prominently, in the group and before anything is sent.

    The cause may be a new device, or a man in the middle. ``former`` and ``fingerprint``: 64 hexadecimal digits.
    ``was_verified``: the former key had been verified.
    """

    group_id: UUID
    user_id: UUID
    former: str
    fingerprint: str
    was_verified: bool


@dataclass(frozen=True)
class EncryptionChanged:
    """A group's encryption has changed: call ``Codec.view`` again."""

    group_id: UUID


@dataclass(frozen=True)
class EncryptionNotice:
    """A sentence for the user about a group's encryption. Applications should decide by ``kind``:

    - "joined": messages from before the user joined cannot be decrypted.
    - "returned": the user rejoined with new keys; messages from the time without keys cannot be decrypted.
    - "refused": data from the server was invalid, and was rejected. ``user_id``: the claimed sender.
    - "stranger": ``user_id`` has keys of the group, and is not a member. "mended": such keys were removed.
    - "replaced": another device of the account has replaced this one, until ``Sync.reset``.
    - "restored": the local keys were an old copy, and are not used any more.
    - "lost": this client's state of the group was unusable, or in another branch. It rejoins automatically.
    - "removed": ``user_id`` has removed the keys of ``other_id`` from the group.
    - "welcomed": ``user_id`` has signed the Welcome by which the user joined.
    """

    group_id: UUID
    kind: str
    sentence: str
    user_id: UUID | None = None
    other_id: UUID | None = None


EncryptionNews = KeyChanged | EncryptionChanged | EncryptionNotice
"""News about a group's encryption."""

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
