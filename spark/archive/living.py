"""Determines which archived messages can be read: those in the index that have keys."""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from conclave.keys import tree
from conclave.keys.file import KeyFileError
from conclave.keys.store import KeyStore
from conclave.keys.tree import Range
from conclave.store import message_keys
from conclave.store.archive.moves import PartRow
from conclave.store.engine.faults import StoreError
from spark.hot_store import ArchiveRunError, Hot


def holds(ranges: Sequence[Range], number: int) -> bool:
    """Return whether a number is in any of the disjoint, ascending ranges."""
    index = bisect_right(ranges, number, key=lambda each: each.first) - 1
    return index >= 0 and number <= ranges[index].last


class Living:
    """Finds the readable messages of parts. Messages whose keys are recorded for destruction count as erased."""

    def __init__(self, hot: Hot, keys: Callable[[], KeyStore]) -> None:
        """``keys``: opens the keys, called for the first part."""
        self._keys = keys
        self._ids = hot.read(message_keys.group_ids)
        self._pending = hot.read(message_keys.pending_by_group)

    def of(self, part: PartRow) -> list[Range]:
        """Return the numbers of a part's readable messages. Raises ArchiveRunError."""
        group_id = self._ids.get(part.group_key)
        if group_id is None:
            return []  # a deleted group without messages has no id
        try:
            ranges_with_keys = self._keys().covered(group_id, Range(part.first_seq, part.last_seq))
        except (KeyFileError, StoreError) as error:
            raise ArchiveRunError(f"keys: {error}") from error
        return tree.difference(ranges_with_keys, self._pending.get(group_id, []))
