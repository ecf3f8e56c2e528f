"""``[vault]``: the paths of the vault and its copies."""

from dataclasses import dataclass

from marshmallow.fields import List

from conclave.config.fields import PATH, Section
from conclave.strict_fields import Text


@dataclass(frozen=True)
class VaultConfig:
    """``[vault]``: the paths of the vault, the folder with the keys of all bodies and the ledger, and its copies."""

    path: str | None = None
    """None: a folder beside the database, with its name and the suffix ``.vault``."""
    copies: tuple[str, ...] = ()
    """Folders on other disks that the server keeps up to date."""

    def __post_init__(self) -> None:
        """Convert a list from TOML or JSON to a tuple."""
        object.__setattr__(self, "copies", tuple(self.copies))


class VaultSchema(Section):
    """The schema of ``[vault]``."""

    path = Text(validate=PATH)
    copies = List(Text(validate=PATH), error_messages={"invalid": "must be a list of strings"})
