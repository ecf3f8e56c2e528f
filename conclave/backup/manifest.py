"""Reads and writes the manifest of a backup: its contents, and the size and checksum of each file."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

NAME = "manifest.json"
"""The name of the manifest in a backup. It is written last."""

DATABASE = "database.db"
"""The name of the database in a backup."""

ARCHIVE = "archive"
"""The name of the archive's folder in a backup."""

FORMAT = 1
"""The format of backups of this version."""

MAX_BYTES = 1024 * 1024 * 1024
"""The maximum size of a manifest. It has about 200 bytes for each file of the archive."""

MAX_NUMBER = 2**53 - 1
"""The greatest integer that every JSON parser represents exactly."""


class BackupError(Exception):
    """A backup cannot be made, read or restored. The message is one line for the operator."""


@dataclass(frozen=True)
class FileEntry:
    """A file of a backup: its size, and the SHA-256 of its content in hexadecimal digits."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class ArchiveEntry:
    """The archive of a backup: the table's id, version and number of rows."""

    archive_id: str
    version: int
    rows: int


@dataclass(frozen=True)
class Manifest:
    """The contents of a backup."""

    product: str
    """The version of Conclave that made it."""
    schema: int
    """The schema version of the database."""
    number: int
    """The number of the backup in its folder, by which backups are ordered independently of the clock."""
    made_at: int
    """Unix seconds. The copied database was read at this second or later."""
    rows: Mapping[str, int]
    """The number of rows by table of the database."""
    archive: ArchiveEntry | None
    """None if nothing is archived."""
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    """All files except the manifest, by path in the backup."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """The damage that was known when it was made, by path; "archive" for the table."""

    @property
    def size(self) -> int:
        """The total bytes of all files."""
        return sum(each.bytes for each in self.files.values())

    @property
    def messages(self) -> int:
        """The number of messages in the database and in the archive, including hidden ones."""
        return self.rows.get("messages", 0) + (self.archive.rows if self.archive else 0)

    def to_json(self) -> str:
        """Return the text of the manifest, which includes its own checksum."""
        values = {"format": FORMAT, **asdict(self)}
        return json.dumps(values | {"sha256": _sum_of(values)}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the result of ``to_json``. Raises ValueError with the reason."""
        values = json.loads(text)
        if not isinstance(values, dict) or "format" not in values:
            raise ValueError("is not a manifest of a backup")
        if values["format"] != FORMAT:
            raise ValueError(
                f"has the format {values['format']!r} instead of {FORMAT}: use a newer version of Conclave"
            )
        if values.pop("sha256", None) != _sum_of(values):
            raise ValueError("was changed or damaged: its checksum differs")
        del values["format"]
        files = {name: FileEntry(**entry) for name, entry in values.pop("files").items()}
        if invalid_name := next((name for name in files if not _is_of_backup(name)), None):
            raise ValueError(f"has a file that cannot belong to a backup: {invalid_name!r}")
        if DATABASE not in files:
            raise ValueError("has no database")
        archive = values.pop("archive")
        manifest = cls(**values, archive=ArchiveEntry(**archive) if archive else None, files=files)
        manifest._validate_types()
        return manifest

    def _validate_types(self) -> None:
        """Raise ValueError if a value has a wrong type or range. An edited manifest may contain anything."""
        numbers = [self.schema, self.number, self.made_at, *self.rows.values()]
        texts = [self.product, *self.rows, *self.faults, *self.faults.values()]
        if self.archive:
            numbers += [self.archive.version, self.archive.rows]
            texts.append(self.archive.archive_id)
        for each in self.files.values():
            numbers.append(each.bytes)
            texts.append(each.sha256)
        if not all(type(each) is int and 0 <= each <= MAX_NUMBER for each in numbers):
            raise ValueError("has an invalid number")
        if not all(type(each) is str and each.isprintable() for each in texts):
            raise ValueError("has an invalid text")


def read(folder: Path) -> Manifest:
    """Return the manifest of the backup in ``folder``. Raises BackupError."""
    path = folder / NAME
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BackupError(f"{path}: is too large for a manifest")
        return Manifest.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        has_backups = any(True for _ in folder.glob(f"*/{NAME}"))
        problem = "contains backups: choose one of them" if has_backups else f"is not a backup: it has no {NAME}"
        raise BackupError(f"{folder}: {problem}") from None
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BackupError(f"{path}: {error}") from error
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BackupError(f"{path}: is not a valid manifest: was it edited?") from error


def require_present(folder: Path) -> None:
    """Raise BackupError if the backup in ``folder`` was removed after its manifest was read."""
    if not (folder / NAME).exists():
        raise BackupError(
            f"{folder}: was removed meanwhile, for example by `conclave backup --keep`: use a newer backup"
        )


def _sum_of(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _is_of_backup(name: str) -> bool:
    """Return whether a manifest may contain the file ``name``, to which a restore writes."""
    first, *others = name.split("/")
    return name == DATABASE or (
        first == ARCHIVE and bool(others) and not {"", ".", ".."} & {*others} and name.isprintable()
    )
