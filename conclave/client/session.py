"""A session, and the file that stores it between starts. The file contains the token: its mode is 0600."""

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self
from uuid import UUID

from conclave.wire.formats import Format


class SessionFileError(Exception):
    """A session file cannot be used; the text says why, in one line."""


@dataclass(frozen=True)
class LoginSession:
    """A user's session on a server. ``repr`` omits the token."""

    url: str
    user_id: UUID
    username: str
    token: str = field(repr=False)
    written_in: Format = Format.JSON

    def save(self, path: Path) -> None:
        """Write the session to ``path`` atomically, readable only by its owner. Raises OSError."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        values = asdict(self) | {"user_id": str(self.user_id), "written_in": self.written_in.name.lower()}
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
        new = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(values, file)
                file.flush()
                os.fsync(file.fileno())
            new.rename(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Return the session from a file; None if the file does not exist.

        Raises SessionFileError if other users can read the file, or if it is invalid.
        """
        try:
            if path.stat().st_mode & 0o077:
                raise SessionFileError(
                    f"{path}: other users can read this session: chmod 600 it, or remove it and log in again"
                )
            values = json.loads(path.read_text(encoding="utf-8"))
            written_in = Format[values.pop("written_in").upper()]
            if not all(isinstance(each, str) for each in values.values()):
                raise ValueError("a value is not a string")  # noqa: TRY301 - handled below
            return cls(**values | {"user_id": UUID(values["user_id"]), "written_in": written_in})
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SessionFileError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SessionFileError(f"{path}: is not a session: remove it and log in again") from error
