"""``[ledger]``: where the purge ledger is, and how far back it reaches."""

from dataclasses import dataclass

from conclave.config.fields import Duration
from conclave.config.section import PATH, Section
from conclave.strict_fields import Text


@dataclass(frozen=True)
class LedgerConfig:
    """``[ledger]``: where the purge ledger is, and how far back it reaches."""

    path: str | None = None
    """None for a file beside the database."""
    keep: int = 90 * 86_400
    """How long its entries are kept, seconds."""


class LedgerSchema(Section):
    """What ``[ledger]`` may say."""

    path = Text(validate=PATH)
    keep = Duration()
