"""What an expiry needs done with single rows of the archive, by either means: an Eraser.

There are two. ``spark_eraser.py`` works on as many cores as Spark has; ``arrow_eraser.py`` needs no Spark.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from conclave.keys.cover import Range
from conclave.retention import rules
from conclave.retention.rules import Bounds
from conclave.store.archive.erasures import Key
from conclave.store.archive.moves import PartRow
from conclave.store.resources.receipts import OVERWRITTEN, Erased
from spark.archive import columns as a
from spark.archive.data_files import Partition
from spark.archive.expiry_plan import COUNTED, RESTORED, RULES, ArchivePlan

MEASURED = (*COUNTED, OVERWRITTEN)
"""By what rows go. OVERWRITTEN: receipts have told of them by a rule, when their keys were lost."""

Living = Mapping[int, Sequence[Range]]
"""The numbers that the table has, by the keys of groups."""


@dataclass(frozen=True)
class Measured:
    """For one row of the index: which messages go by each rule, and what is left (None: nothing).

    ``taken_back``: the numbers of those that were taken back and have to stay.
    """

    gone: list[Erased]
    left: PartRow | None
    taken_back: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many messages the table has of the row."""
        return sum(each.messages for each in self.gone) + (self.left.message_count if self.left else 0)


class Eraser(Protocol):
    """Looks at rows of the table and deletes some. Damaged pages are an error, and then nothing is deleted."""

    def measure(self, plan: ArchivePlan) -> dict[Key, Measured]:
        """Return for each row of the index in ``plan.partial`` that has messages: what goes and what stays."""

    def delete(self, plan: ArchivePlan) -> int:
        """Delete from the partitions ``plan.touched`` what goes by ``plan.groups``; return how many messages."""

    def living(self, group_keys: Collection[int], partitions: Collection[Partition]) -> Living:
        """Return the numbers that these partitions have of these groups."""


def rule_of_row(bounds: Bounds) -> str:
    """Return the SQL expression for the rule by which a row of the table, joined with DUE, goes; null if it stays.

    What receipts have told of goes as OVERWRITTEN.
    """
    rule = (
        f"CASE WHEN {a.IS_RESTORED} THEN '{RESTORED}' WHEN {rules.may_go(bounds)} THEN {rules.named(RULES, bounds)} END"
    )
    return f"CASE WHEN {rule} IS NOT NULL AND {a.SEQUENCE_NUM} <= {a.DEAD_UP_TO} THEN '{OVERWRITTEN}' ELSE {rule} END"
