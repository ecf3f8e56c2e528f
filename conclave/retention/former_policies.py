"""Policies of groups that another one is about to replace: what they hide until it is in force stays hidden.

A change of a group settles its marks as of the second in which they are written. Until the commit is there, a moment
later or on a slow disk some seconds, readers go by the former policy, and of what it hides meanwhile the marks do not
tell. So from the transaction on, until it is known when the change was there, every reader of the server hides what the
former policy does, too. If a second has gone by, what was hidden by then is hidden from here on, and by a mark that is
written after it: at once, or with the next beat of the server if that fails, or if no request waits for the change
any more. Only a process that dies before forgets it.
"""

from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conclave.retention.policy import GroupPolicy


class FormerPolicies:
    """The policies that are being replaced on one server. Threads may ask."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = Lock()
        self._replaced: dict[int, tuple[GroupPolicy, ...]] = {}
        self._before: dict[int, int] = {}
        self._unmarked: dict[int, int] = {}

    def of(self, group_key: int) -> "tuple[GroupPolicy, ...]":
        """Return the policies of a group that may have been in force a moment ago. Ask before ``hidden_before``."""
        return self._replaced.get(group_key, ())

    def hidden_before(self, group_key: int) -> int:
        """Return the Unix second before which messages of a group (exclusive) are hidden, whatever its marks say."""
        return self._before.get(group_key, 0)

    def forget(self) -> None:
        """Hide by the marks alone: an operator has accepted a clock, and brought them to its time."""
        self._before.clear()
        self._unmarked.clear()

    @property
    def unmarked(self) -> dict[int, int]:
        """Before which Unix seconds messages are hidden without a mark, by the keys of their groups."""
        with self._lock:
            return {**self._unmarked}

    def marked(self, unmarked: dict[int, int]) -> None:
        """Note that the marks of what ``unmarked`` has told are there."""
        with self._lock:
            for group_key, before in unmarked.items():
                if self._unmarked.get(group_key) == before:
                    del self._unmarked[group_key]

    def begin(self, group_key: int, policy: "GroupPolicy") -> None:
        """Hide what ``policy`` hides, which is being replaced."""
        with self._lock:
            self._replaced[group_key] = (*self.of(group_key), policy)

    def end(self, group_key: int, policy: "GroupPolicy", before: int) -> None:
        """Hide what is older than ``before``, 0 for nothing, and not what ``policy`` hides: it is replaced by now."""
        with self._lock:
            if before:  # first, for who does not find the policy any more
                self._before[group_key] = max(before, self.hidden_before(group_key))
                self._unmarked[group_key] = self._before[group_key]
            left = [*self.of(group_key)]
            left.remove(policy)
            self._replaced[group_key] = (*left,)
            if not left:
                del self._replaced[group_key]


class PolicyChange:
    """One change of a group's policy."""

    def __init__(self, former: FormerPolicies) -> None:
        """Prepare only. ``former``: those of the server that changes it."""
        self._former = former
        self._begun: tuple[int, GroupPolicy, int] | None = None
        self._is_over = False

    def begin(self, group_key: int, policy: "GroupPolicy", at: int) -> None:
        """Note, in the transaction, which policy is replaced. ``at``: the second as of which the marks are settled."""
        if not self._is_over:  # otherwise nothing would end it
            self._former.begin(group_key, policy)
            self._begun = group_key, policy, at

    def end(self, now: int) -> bool:
        """Note that the transaction has ended, by the Unix second ``now``. Call it in any case.

        Returns whether there is a mark for all that is hidden.
        """
        self._is_over = True
        if self._begun is None:
            return True
        group_key, policy, at = self._begun
        before = policy.expires_before(now)
        is_told = before <= policy.expires_before(at)
        self._former.end(group_key, policy, 0 if is_told else before)
        return is_told
