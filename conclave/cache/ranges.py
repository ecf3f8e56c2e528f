"""Cached ranges: consecutive messages of a group, written in one format."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from conclave.events import MessageStored
from conclave.retention.policy import GroupPolicy
from conclave.retention.visibility import Visibility
from conclave.store.resources.messages import EncodedMessage, EncodeMessage

PIECE_BYTES = 160
"""The overhead of a message's Python objects."""

RANGE_BYTES = 2 * 1024 * 1024
"""The largest range. A longer one drops its first messages."""


@dataclass(eq=False)
class CachedRange:
    """All visible messages of a group with numbers above ``base`` up to ``end``, in order.

    ``policy`` and ``write``: used to write messages.
    """

    base: int
    end: int
    hidden_before: int
    """Messages created before this Unix second are missing, so the range cannot be used if fewer are hidden."""
    policy: GroupPolicy
    write: EncodeMessage
    numbers: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    sent: deque[MessageStored] = field(default_factory=deque)
    """The last messages, which are written when they are first needed."""
    oldest: float = math.inf
    """A lower bound of the creation times."""
    size: int = 0
    """Bytes."""

    def covers(self, after: int) -> bool:
        """Return whether the range contains the messages after the number ``after``."""
        return self.base <= after < self.end

    def first_after(self, after: int, view: Visibility) -> int | None:
        """Return the position of the first message after the number ``after``; drop messages that are hidden.

        None: more is visible than the range contains, since the time went back.
        """
        if view.hidden_before < self.hidden_before:
            return None
        if self.sent:
            self._write_sent()
        if self.oldest < view.hidden_before:
            self._hide(view.hidden_before)
        return bisect_right(self.numbers, after)

    def send(self, message: MessageStored) -> int:
        """Add a sent message whose number follows ``end``; return the growth in bytes."""
        size_before = self.size
        self.sent.append(message)
        self.end = message.sequence_num
        self.size += _estimated_size(message)
        if self.size > RANGE_BYTES:
            self._trim()
        return self.size - size_before

    def extend(self, messages: Sequence[EncodedMessage], end: int, hidden_before: int) -> None:
        """Append messages up to the new ``end``, which were read with ``hidden_before``."""
        self._write_sent()
        self._insert(len(self.numbers), messages, hidden_before)
        self.end = end
        self._trim()

    def absorb(self, later: "CachedRange") -> None:
        """Append the messages of an overlapping or adjacent range."""
        later._write_sent()  # noqa: SLF001 - of the same class
        messages = map(EncodedMessage, later.numbers, later.times, later.pieces)
        self.extend([each for each in messages if each.sequence_num > self.end], later.end, later.hidden_before)

    def prepend(self, messages: Sequence[EncodedMessage], base: int, hidden_before: int) -> None:
        """Prepend messages from the new ``base``, which were read with ``hidden_before``."""
        self._insert(0, messages, hidden_before)
        self.base = base
        self._trim()

    def _insert(self, at: int, messages: Sequence[EncodedMessage], hidden_before: int) -> None:
        if messages:
            numbers, times, pieces, *_ = zip(*messages, strict=True)
            self.numbers[at:at], self.times[at:at], self.pieces[at:at] = numbers, times, pieces
            self.size += sum(map(len, pieces)) + len(pieces) * PIECE_BYTES
            self.oldest = min(self.oldest, *times)
        self.hidden_before = max(self.hidden_before, hidden_before)

    def _hide(self, hidden_before: int) -> None:
        positions = [n for n, created_at in enumerate(self.times) if created_at >= hidden_before]
        self.numbers, self.times = [self.numbers[n] for n in positions], [self.times[n] for n in positions]
        self.pieces = [self.pieces[n] for n in positions]
        self.size = sum(len(piece) + PIECE_BYTES for piece in self.pieces)
        self.oldest = min(self.times, default=math.inf)
        self.hidden_before = hidden_before

    def _write_sent(self) -> None:
        messages, self.sent = self.sent, deque()
        self.size -= sum(map(_estimated_size, messages))
        self._insert(len(self.numbers), [self._piece(each) for each in messages], self.hidden_before)

    def _piece(self, message: MessageStored) -> EncodedMessage:
        created_at = message.created_at
        expires_at = self.policy.expires_at(created_at)
        text = self.write(message.sequence_num, message.sender_id, message.body, created_at, expires_at)
        return EncodedMessage(message.sequence_num, created_at, text)

    def _trim(self) -> None:
        count = 0
        while self.size > RANGE_BYTES and count < len(self.pieces):
            self.size -= len(self.pieces[count]) + PIECE_BYTES
            self.base = self.numbers[count]
            count += 1
        if count:
            del self.numbers[:count], self.times[:count], self.pieces[:count]
        while self.size > RANGE_BYTES:
            first = self.sent.popleft()
            self.size -= _estimated_size(first)
            self.base = first.sequence_num


def _estimated_size(message: MessageStored) -> int:
    """Return an upper estimate of the size of a message that is not written yet."""
    return len(message.body) * 4 // 3 + PIECE_BYTES
