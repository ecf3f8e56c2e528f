"""``[ledger]``: where the purge ledger is, and how far back it reaches."""

from dataclasses import dataclass

from conclave.config.section import PATH, Section
from conclave.fields import Duration, Text


@dataclass(frozen=True)
class LedgerConfig:
    """``[ledger]``: where the purge ledger is, and how far back it reaches.

    ``path``: None for a file beside the database. ``keep``: how long its entries are kept, seconds.
    """

    path: str | None = None
    keep: int = 90 * 86_400


class LedgerSchema(Section):
    """What ``[ledger]`` may say."""

    path = Text(validate=PATH)
    keep = Duration()
