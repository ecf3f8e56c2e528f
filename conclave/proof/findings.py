"""What a proof has looked at, and what it has found: data only, and never any content."""

from dataclasses import dataclass, field
from enum import StrEnum, auto

MOST_FINDINGS = 1000
"""At most 1,000 findings of a part are kept; the rest are counted."""


class Kind(StrEnum):
    """What was found."""

    KEYS = auto()
    UNREADABLE = auto()
    BLIND = auto()


@dataclass(frozen=True)
class Finding:
    """One place by which something erased can be decrypted, or where that cannot be told."""

    kind: Kind
    path: str
    told: str
    """What it is, in one line."""
    offset: int | None = None
    """In the file."""


@dataclass
class ProofPart:
    """One part of the proof."""

    name: str
    looked_at: dict[str, int] = field(default_factory=dict)
    """How much of what."""
    findings: list[Finding] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """What may be there for a while, and why: no fault, but not erased either."""
    notes: list[str] = field(default_factory=list)
    """What else there is to say."""
    more: int = 0
    """How many findings there are beyond ``findings``."""

    def count(self, what: str, amount: int = 1) -> None:
        """Note that ``amount`` more of something were looked at."""
        self.looked_at[what] = self.looked_at.get(what, 0) + amount

    def add(self, finding: Finding) -> None:
        """Add a finding, once."""
        if finding in self.findings:
            return
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(finding)
        else:
            self.more += 1
