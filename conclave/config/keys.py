"""``[keys]``: where the keys of bodies are, and where copies of them."""

from dataclasses import dataclass

from marshmallow.fields import List

from conclave.config.section import PATH, Section
from conclave.strict_fields import Text


@dataclass(frozen=True)
class KeysConfig:
    """``[keys]``: where the keys of bodies are, and where copies of them."""

    path: str | None = None
    """Of the key file; None for a file beside the database."""
    copies: tuple[str, ...] = ()
    """The paths of its copies, which each run renews."""

    def __post_init__(self) -> None:
        """Take a list too, since TOML and JSON have no tuples."""
        object.__setattr__(self, "copies", tuple(self.copies))


class KeysSchema(Section):
    """What ``[keys]`` may say."""

    path = Text(validate=PATH)
    copies = List(Text(validate=PATH), error_messages={"invalid": "must be a list of strings"})
