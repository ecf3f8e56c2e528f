"""Which messages of a group a reader may see now: told once, for both tiers.

A member sees a message if its number is above the mark ``gone_below``, if it is not past its time, and if it is a
commit or its sender's account was not deleted. The hot store, the archive and pages that were read a moment ago all
ask here. Whatever is to hide a message from a reader belongs here and nowhere else.
"""

from dataclasses import dataclass
from typing import Protocol

from conclave.retention.policy import PolicySettings
from conclave.store import policies
from conclave.store.groups import Group


class Numbered(Protocol):
    """What of a message that was read decides whether it may still be handed on."""

    @property
    def sequence_num(self) -> int:
        """Its number in the group."""

    @property
    def created_at(self) -> int:
        """Unix seconds."""


@dataclass(frozen=True)
class Sight:
    """What of one group is to be seen at one moment.

    ``gone_below``: numbers, inclusive, that are never served again. ``hidden_before``: Unix second, exclusive.
    """

    gone_below: int
    hidden_before: int

    def admits(self, message: Numbered) -> bool:
        """Tell whether a message that was read earlier may be seen still; its sender was looked at when it was read."""
        return message.sequence_num > self.gone_below and message.created_at >= self.hidden_before

    def condition(self, after: int, deleted_senders: str) -> str:
        """Return, in SQL, which messages with numbers greater than ``after`` are to be seen.

        ``deleted_senders``: a list of ids or a query for them, of accounts that were deleted; "" for none.
        """
        return _condition(str(max(after, self.gone_below)), str(self.hidden_before), deleted_senders)

    def bounds(self, after: int) -> dict[str, int]:
        """Return the values that HOT takes, for numbers greater than ``after``."""
        return {"after": max(after, self.gone_below), "hidden_before": self.hidden_before}


def of_group(group: Group, settings: PolicySettings, now: int) -> Sight:
    """Return what a member of the group may see at the Unix second ``now``."""
    return Sight(group.gone_below, policies.hidden_before(group, settings, now))


def _condition(after: str, hidden_before: str, deleted_senders: str) -> str:
    seen = f"sequence_num > {after} AND created_at >= {hidden_before}"
    return f"{seen} AND (is_commit OR sender_id NOT IN ({deleted_senders}))" if deleted_senders else seen


HOT = _condition(":after", ":hidden_before", "SELECT user_id FROM user_tombstones")
"""Which rows of the table ``messages`` are to be seen, by the values of ``Sight.bounds``: one text for all readers."""
