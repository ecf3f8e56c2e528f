"""The results of a proof. They never include message content."""

from dataclasses import dataclass, field
from enum import StrEnum, auto

MAX_FINDINGS = 1000
"""The maximum number of findings to keep for a part. Further findings are only counted."""


class FindingKind(StrEnum):
    """The kind of a finding: keys of erased messages, an unreadable file, or a check that proves nothing."""

    KEYS = auto()
    UNREADABLE = auto()
    BLIND = auto()


@dataclass(frozen=True)
class ProofFinding:
    """A reason why erased bodies may still be decrypted, or why that is unknown."""

    kind: FindingKind
    path: str
    told: str
    """The description, in one line."""
    offset: int | None = None
    """The offset in the file."""


@dataclass
class ProofPart:
    """One part of the proof."""

    name: str
    looked_at: dict[str, int] = field(default_factory=dict)
    """The number of examined items by kind."""
    findings: list[ProofFinding] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Items that legitimately remain for a while, with the reason."""
    notes: list[str] = field(default_factory=list)
    """Further lines for the operator."""
    more: int = 0
    """The number of findings beyond ``findings``."""

    def count(self, kind: str, amount: int = 1) -> None:
        """Add to the number of examined items of a kind."""
        self.looked_at[kind] = self.looked_at.get(kind, 0) + amount

    def add(self, finding: ProofFinding) -> None:
        """Add a finding, unless it is already there."""
        if finding in self.findings:
            return
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)
        else:
            self.more += 1
