"""Defines all settings, as frozen dataclasses and marshmallow schemas."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from marshmallow import validate
from marshmallow.fields import Nested

from conclave.config.admin import AdminConfig, AdminSchema
from conclave.config.archive import ArchiveConfig, ArchiveSchema
from conclave.config.cleanup import CleanupConfig, CleanupSchema, SparkConfig, SparkSchema
from conclave.config.fields import PATH, PORT, Duration, Section, require_host
from conclave.config.limits import LimitsConfig, LimitsSchema
from conclave.config.log import LogConfig, LogSchema
from conclave.config.retention import RetentionConfig, RetentionSchema
from conclave.config.vault import VaultConfig, VaultSchema
from conclave.config.web import WebConfig, WebSchema
from conclave.retention.durations import MAX_SECONDS
from conclave.retention.policy import KEEP
from conclave.retention.resolve import PolicySettings
from conclave.strict_fields import StrictBoolean, StrictInteger, Text

KEYS, LEDGER, LOCK = "keys", "ledger", "lock"
"""The files of the vault. A copy of the vault has the first two."""


@dataclass(frozen=True)
class Config:
    """All settings. Lifetimes are whole seconds; ``message_retention`` may also be KEEP or AFTER_FETCH.

    Paths are absolute, with symbolic links resolved, so that a file always has the same path. Links of vault copies are
    not resolved, since their disks may not respond.
    """

    listen_address: str = "127.0.0.1"
    listen_port: int | None = None
    database_path: str = "conclave.db"
    data_path: str | None = None
    token_ttl_seconds: int = 2_592_000
    invite_ttl_seconds: int = 604_800
    message_retention: int = KEEP
    cleanup_interval: int = 3600
    registration_enabled: bool = True
    registration_token: str | None = None
    auth_header: str = "Authorization"
    tls_cert_path: str | None = None
    tls_key_path: str | None = None
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    cleanup: CleanupConfig = field(default_factory=CleanupConfig)
    spark: SparkConfig = field(default_factory=SparkConfig)
    archive: ArchiveConfig = field(default_factory=ArchiveConfig)
    vault: VaultConfig = field(default_factory=VaultConfig)
    web: WebConfig = field(default_factory=WebConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        """Resolve the paths, and write Authorization as clients do. Raises OSError if there is no working directory."""
        if self.auth_header.lower() == "authorization":  # the page would send the bare token in any other spelling
            object.__setattr__(self, "auth_header", "Authorization")
        object.__setattr__(self, "database_path", _resolved(self.database_path))
        if self.data_path:
            object.__setattr__(self, "data_path", _resolved(self.data_path))
        if self.archive.path:
            object.__setattr__(self, "archive", replace(self.archive, path=_resolved(self.archive.path)))
        copies = tuple(str(Path(each).absolute()) for each in self.vault.copies)
        path = _resolved(self.vault.path) if self.vault.path else None
        object.__setattr__(self, "vault", VaultConfig(path, copies))

    @property
    def port(self) -> int:
        """The port to listen on; the default is 8443 with TLS and 8080 without. 0: any free port."""
        if self.listen_port is not None:
            return self.listen_port
        return 8443 if self.tls_cert_path else 8080

    @property
    def database(self) -> Path:
        """The path of the hot database."""
        return Path(self.database_path)

    @property
    def data(self) -> Path:
        """The path of the data directory."""
        return Path(self.data_path) if self.data_path else self.database.with_suffix(".data")

    @property
    def work(self) -> Path:
        """The folder for temporary files of cleanup runs."""
        return self.data / "work"

    @property
    def archive_path(self) -> Path:
        """The path of the archive's table."""
        return Path(self.archive.path) if self.archive.path else self.data / "archive"

    @property
    def vault_path(self) -> Path:
        """The path of the vault: a folder with the key file, the ledger, and the lock of the server that uses it."""
        return Path(self.vault.path) if self.vault.path else self.database.with_suffix(".vault")

    @property
    def vault_copies(self) -> list[Path]:
        """The folders with copies of the vault."""
        return [Path(each) for each in self.vault.copies]

    @property
    def keys_path(self) -> Path:
        """The path of the key file."""
        return self.vault_path / KEYS

    @property
    def ledger_path(self) -> Path:
        """The path of the purge ledger."""
        return self.vault_path / LEDGER

    @property
    def policy(self) -> PolicySettings:
        """The settings that determine which data is deleted."""
        return PolicySettings(
            self.message_retention,
            self.token_ttl_seconds,
            self.invite_ttl_seconds,
            enabled=self.retention.enabled,
            default_policy=self.retention.default_policy,
            limits=self.retention.limits,
            groups=self.retention.groups,
            fetch_hold_limit=self.retention.fetch_hold_limit,
            retain_commits=self.retention.retain_commits,
            self_destruct_max_age=self.retention.self_destruct_max_age,
        )

    def to_json(self) -> str:
        """Return the settings as JSON, for another process: see ``from_json``."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Build from the result of ``to_json``."""
        return cls.from_mapping(json.loads(text))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build from a mapping of field names to values. Tables are mappings."""
        return cls(**{name: _section(name, value) for name, value in values.items()})


SECTIONS = {
    "retention": RetentionConfig,
    "cleanup": CleanupConfig,
    "spark": SparkConfig,
    "archive": ArchiveConfig,
    "vault": VaultConfig,
    "web": WebConfig,
    "limits": LimitsConfig,
    "admin": AdminConfig,
    "log": LogConfig,
}


def _section(name: str, value: Any) -> Any:
    """Return the value of a setting, or the section object of a table."""
    if name == "retention":
        return RetentionConfig.from_mapping(value)
    return SECTIONS[name](**value) if name in SECTIONS else value


def _resolved(path: str) -> str:
    # Path.resolve would raise RuntimeError for circular links; here opening the file reports them.
    return os.path.realpath(path)


LIFETIME = validate.Range(1, MAX_SECONDS, error=f"must be between 1 and {MAX_SECONDS} seconds")


class ConfigSchema(Section):
    """The schema of a configuration."""

    listen_address = Text(validate=require_host)
    listen_port = StrictInteger(validate=PORT)
    database_path = Text(validate=PATH)
    data_path = Text(validate=PATH)
    token_ttl_seconds = StrictInteger(validate=LIFETIME)
    invite_ttl_seconds = StrictInteger(validate=LIFETIME)
    message_retention = Duration(words=True)
    cleanup_interval = Duration()
    registration_enabled = StrictBoolean()
    registration_token = Text(
        validate=validate.Regexp(r"[a-zA-Z0-9_-]+\Z", error="may contain only letters, digits, _ and -, at least one")
    )
    auth_header = Text(validate=validate.Regexp(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z", error="is not the name of a header"))
    tls_cert_path = Text(validate=PATH)
    tls_key_path = Text(validate=PATH)
    retention = Nested(RetentionSchema)
    cleanup = Nested(CleanupSchema)
    spark = Nested(SparkSchema)
    archive = Nested(ArchiveSchema)
    vault = Nested(VaultSchema)
    web = Nested(WebSchema)
    limits = Nested(LimitsSchema)
    admin = Nested(AdminSchema)
    log = Nested(LogSchema)


def setting_names() -> list[str]:
    """Return the names of all settings, with ``table.name`` for those in tables."""
    names: list[str] = []
    for each in fields(Config):
        section = SECTIONS.get(each.name)
        names += [f"{each.name}.{inner.name}" for inner in fields(section)] if section else [each.name]
    return names
