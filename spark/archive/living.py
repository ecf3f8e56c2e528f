"""Which archived messages can be read: those that the index names and that have keys."""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from conclave.keys import tree
from conclave.keys.file import KeyFileError
from conclave.keys.store import KeyStore
from conclave.keys.tree import Range
from conclave.store import message_keys
from conclave.store.archive.moves import PartRow
from conclave.store.engine.faults import StoreError
from spark.hot_store import ArchiveFault, Hot


def holds(some: Sequence[Range], number: int) -> bool:
    """Return whether a number is in ``some`` ranges, which are in ascending order and do not meet."""
    at = bisect_right(some, number, key=lambda each: each.first) - 1
    return at >= 0 and number <= some[at].last


class Living:
    """Answers for parts. A message whose key is noted to be destroyed counts as erased."""

    def __init__(self, hot: Hot, keys: Callable[[], KeyStore]) -> None:
        """``keys``: opens the keys. They are asked for with the first part."""
        self._keys = keys
        self._ids = hot.read(message_keys.group_ids)
        self._noted = hot.read(message_keys.pending_by_group)

    def of(self, part: PartRow) -> list[Range]:
        """Return the numbers of a part that can be read, as far as there are messages. Raises ArchiveError."""
        group_id = self._ids.get(part.group_key)
        if group_id is None:
            return []  # with the last of a deleted group its id went
        try:
            kept = self._keys().covered(group_id, Range(part.first_seq, part.last_seq))
        except (KeyFileError, StoreError) as error:
            raise ArchiveFault(f"keys: {error}") from error
        return tree.difference(kept, self._noted.get(group_id, []))
