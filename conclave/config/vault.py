"""``[vault]``: where the vault is, and where copies of it."""

from dataclasses import dataclass

from marshmallow.fields import List

from conclave.config.fields import PATH, Section
from conclave.strict_fields import Text


@dataclass(frozen=True)
class VaultConfig:
    """``[vault]``: where the vault is, the folder with the keys of all bodies and the ledger, and its copies."""

    path: str | None = None
    """None for a folder beside the database, with its name and the suffix ``.vault``."""
    copies: tuple[str, ...] = ()
    """Folders on other disks, which the server keeps up to date."""

    def __post_init__(self) -> None:
        """Take a list too, since TOML and JSON have no tuples."""
        object.__setattr__(self, "copies", tuple(self.copies))


class VaultSchema(Section):
    """What ``[vault]`` may say."""

    path = Text(validate=PATH)
    copies = List(Text(validate=PATH), error_messages={"invalid": "must be a list of strings"})
