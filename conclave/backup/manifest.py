"""The manifest of a backup: what the backup holds, and the size and the sum of each of its files."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

NAME = "manifest.json"
"""The name of the manifest in the folder of a backup. It is written last."""

DATABASE = "database.db"
"""The name of the database in a backup."""

ARCHIVE = "archive"
"""The name of the archive's folder in a backup."""

FORMAT = 1
"""The format of backups that this program makes."""

MOST_BYTES = 1024 * 1024 * 1024
"""A manifest has at most 1 GiB: a file of the archive takes about 200 bytes of it."""

GREATEST = 2**53 - 1
"""Numbers are at most as great as every JSON reader holds exactly."""


class BackupError(Exception):
    """A backup cannot be made, read or restored. The message is one line for the operator."""


@dataclass(frozen=True)
class FileEntry:
    """A file of a backup: its size, and the SHA-256 of its content in hexadecimal digits."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class ArchiveEntry:
    """The archive of a backup: the table's id, its version, and how many rows that has."""

    archive_id: str
    version: int
    rows: int


@dataclass(frozen=True)
class Manifest:
    """What a backup holds."""

    product: str
    """The version of Conclave that made it."""
    schema: int
    """That of the database."""
    number: int
    """Backups at one place are counted, so that their order does not depend on the clock."""
    made_at: int
    """Unix seconds; the copied database was read at this second or later."""
    rows: Mapping[str, int]
    """How many each table of the database has."""
    archive: ArchiveEntry | None
    """None if nothing is archived."""
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    """All files but the manifest itself, by their paths in the backup."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """What was damaged when it was made, by such paths, "archive" for the table."""

    @property
    def size(self) -> int:
        """The bytes of all files together."""
        return sum(each.bytes for each in self.files.values())

    @property
    def messages(self) -> int:
        """How many messages are in it, in the database and in the archive; hidden ones count."""
        return self.rows.get("messages", 0) + (self.archive.rows if self.archive else 0)

    def to_json(self) -> str:
        """Return the text of the manifest. It has a sum of its own, so that a change of it is noticed too."""
        told = {"format": FORMAT, **asdict(self)}
        return json.dumps(told | {"sha256": _sum_of(told)}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what ``to_json`` has written. Raises ValueError with the reason."""
        told = json.loads(text)
        if not isinstance(told, dict) or "format" not in told:
            raise ValueError("is no manifest of a backup")
        if told["format"] != FORMAT:
            raise ValueError(f"has the format {told['format']!r}, this program reads {FORMAT}: use a newer Conclave")
        if told.pop("sha256", None) != _sum_of(told):
            raise ValueError("was changed or damaged: its own sum is another one")
        del told["format"]
        files = {name: FileEntry(**entry) for name, entry in told.pop("files").items()}
        if wrong := next((name for name in files if not _is_of_backup(name)), None):
            raise ValueError(f"names a file that no backup has: {wrong!r}")
        if DATABASE not in files:
            raise ValueError("names no database")
        archive = told.pop("archive")
        found = cls(**told, archive=ArchiveEntry(**archive) if archive else None, files=files)
        found._require_kinds()
        return found

    def _require_kinds(self) -> None:
        """Raise ValueError if a value is not of its kind. A manifest that was written by hand may hold anything."""
        numbers = [self.schema, self.number, self.made_at, *self.rows.values()]
        texts = [self.product, *self.rows, *self.faults, *self.faults.values()]
        if self.archive:
            numbers += [self.archive.version, self.archive.rows]
            texts.append(self.archive.archive_id)
        for each in self.files.values():
            numbers.append(each.bytes)
            texts.append(each.sha256)
        if not all(type(each) is int and 0 <= each <= GREATEST for each in numbers):
            raise ValueError("has a number that no manifest has")
        if not all(type(each) is str and each.isprintable() for each in texts):
            raise ValueError("has a text that no manifest has")


def read(folder: Path) -> Manifest:
    """Return the manifest of the backup in ``folder``. Raises BackupError."""
    path = folder / NAME
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BackupError(f"{path}: is too large for a manifest")
        return Manifest.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        has_backups = any(True for _ in folder.glob(f"*/{NAME}"))
        instead = "holds backups: name one of them" if has_backups else f"is no backup: it has no {NAME}"
        raise BackupError(f"{folder}: {instead}") from None
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BackupError(f"{path}: {error}") from error
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BackupError(f"{path}: is not as a manifest is: was it changed?") from error


def require_there(folder: Path) -> None:
    """Raise BackupError if the backup in ``folder`` was removed after its manifest was read."""
    if not (folder / NAME).exists():
        raise BackupError(f"{folder}: was removed meanwhile, as `conclave backup --keep` does: take a newer one")


def _sum_of(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _is_of_backup(name: str) -> bool:
    """Return whether a manifest may name ``name``: a restore writes under these names."""
    first, *others = name.split("/")
    return name == DATABASE or (
        first == ARCHIVE and bool(others) and not {"", ".", ".."} & {*others} and name.isprintable()
    )
