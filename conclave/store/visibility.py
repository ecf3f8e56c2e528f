"""Decides which messages of a group a reader may see now, in the database and in the archive.

A member sees a message if its number is above the mark ``gone_below``, if it has not expired, and if it is a commit or
its sender's account was not deleted. The hot store, the archive and pages that were read a moment ago all ask here.
Anything that hides a message from a reader belongs here and nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from conclave.retention.policy import PolicySettings
from conclave.store import policies
from conclave.store.groups import Group


class Numbered(Protocol):
    """The values of a message, read earlier, that decide whether it may still be sent."""

    @property
    def sequence_num(self) -> int:
        """The message's number in its group."""

    @property
    def created_at(self) -> int:
        """When the message was stored, Unix seconds."""


@dataclass(frozen=True)
class Sight:
    """Which messages of one group may be seen at one moment.

    ``gone_below``: messages up to this number, inclusive, are never served again. ``hidden_before``: messages created
    before this Unix second, exclusive, are hidden.
    """

    gone_below: int
    hidden_before: int

    def admits(self, message: Numbered) -> bool:
        """Tell whether a message that was read earlier may still be seen. Its sender was checked when it was read."""
        return message.sequence_num > self.gone_below and message.created_at >= self.hidden_before

    def admits_all(self, messages: Sequence[Numbered]) -> bool:
        """Tell whether it admits all of ``messages``, which are in the order of their numbers."""
        return not messages or (
            messages[0].sequence_num > self.gone_below
            and min(message.created_at for message in messages) >= self.hidden_before
        )

    def condition(self, after: int, deleted_senders: str) -> str:
        """Return the SQL condition for the messages with numbers greater than ``after`` that may be seen.

        ``deleted_senders``: the user ids of deleted accounts, as an SQL list or query; "" for none.
        """
        return _condition(str(max(after, self.gone_below)), str(self.hidden_before), deleted_senders)

    def bounds(self, after: int) -> dict[str, int]:
        """Return the values for the parameters of HOT, for numbers greater than ``after``."""
        return {"after": max(after, self.gone_below), "hidden_before": self.hidden_before}


def of_group(group: Group, settings: PolicySettings, now: int) -> Sight:
    """Return what a member of the group may see at the Unix second ``now``."""
    return Sight(group.gone_below, policies.hidden_before(group, settings, now))


def _condition(after: str, hidden_before: str, deleted_senders: str) -> str:
    seen = f"sequence_num > {after} AND created_at >= {hidden_before}"
    return f"{seen} AND (is_commit OR sender_id NOT IN ({deleted_senders}))" if deleted_senders else seen


HOT = _condition(":after", ":hidden_before", "SELECT user_id FROM user_tombstones")
"""The SQL condition for the rows of the table ``messages`` that may be seen.

Its parameters come from ``Sight.bounds``, so all readers share one text of a statement.
"""
