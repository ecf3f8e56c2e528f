"""The operator's settings: TOML in, frozen dataclasses out, all faults reported at once."""

import difflib
import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from marshmallow import RAISE, Schema, ValidationError, validate
from marshmallow.fields import Nested

from conclave.addresses import Network, parse_network
from conclave.fields import Duration, Networks, Size, StrictBoolean, StrictInteger, Text
from conclave.policy import AFTER_FETCH, KEEP, MAX_SECONDS, PolicySettings, is_in_bare_months

SEARCH_PATHS = (Path("conclave.toml"), Path("/etc/conclave/config.toml"))

MAX_FAILURES = 10_000
"""The most wrong passwords or new accounts that are counted: each is a moment in memory."""


Advise = Callable[[str, str], None]
"""Hears of settings that are valid, but may not mean what they seem to: the name, and what it means."""


class ConfigError(Exception):
    """A configuration that the server refuses to start with: one line for each fault."""

    def __init__(self, source: str, faults: list[str]) -> None:
        """Name the file and each of its faults."""
        super().__init__("\n".join(f"{source}: {fault}" for fault in faults))


@dataclass(frozen=True)
class CleanupConfig:
    """``[cleanup]``: how a cleanup run works. ``disk_reserve``: bytes that are kept free for it, 0 for none."""

    engine: str = "spark"
    max_run_time: int = 3600
    disk_reserve: int = 64 * 1024**2


@dataclass(frozen=True)
class SparkConfig:
    """``[spark]``: the session of the cleanup worker."""

    master: str = "local[2]"
    driver_memory: str = "1g"


@dataclass(frozen=True)
class ArchiveConfig:
    """``[archive]``: where older messages move, and when. All in seconds.

    ``after``: the age at which they move, or KEEP: none does. ``erase_delay``: how long replaced files may stay.
    """

    after: int = KEEP
    path: str | None = None
    margin: int = 604_800
    erase_delay: int = 0


@dataclass(frozen=True)
class AdminConfig:
    """``[admin]``: the listener for operators, which tells more than clients may know."""

    listen_address: str = "127.0.0.1"
    listen_port: int = 9090


@dataclass(frozen=True)
class LimitsConfig:
    """``[limits]``: what clients may do.

    How much one address may do, whose word counts on where a request comes from, and how much memory all responses
    under way may take. ``login_window``: seconds, in which wrong passwords and new accounts are counted.
    """

    trusted_proxies: tuple[str, ...] = ()
    login_failures: int = 50
    login_failures_per_address: int = 200
    registrations_per_address: int = 1000
    login_window: int = 300
    response_memory: str = "256m"

    def __post_init__(self) -> None:
        """Take a list too: TOML and JSON have no other."""
        object.__setattr__(self, "trusted_proxies", tuple(self.trusted_proxies))

    @property
    def response_bytes(self) -> int:
        """The bytes of ``response_memory``."""
        return int(self.response_memory[:-1]) * {"m": 1024**2, "g": 1024**3}[self.response_memory[-1]]

    @property
    def trusted(self) -> list[Network]:
        """The networks of ``trusted_proxies``."""
        return [parse_network(text) for text in self.trusted_proxies]


@dataclass(frozen=True)
class Config:
    """Every setting. Lifetimes are whole seconds; ``message_retention`` may also be KEEP or AFTER_FETCH.

    Paths are absolute and without symbolic links from here on: by whatever name a file is known, and whatever the
    working directory becomes, it is the same file.
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
    cleanup: CleanupConfig = field(default_factory=CleanupConfig)
    spark: SparkConfig = field(default_factory=SparkConfig)
    archive: ArchiveConfig = field(default_factory=ArchiveConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)

    def __post_init__(self) -> None:
        """Resolve the paths. Raises OSError where there is no working directory."""
        object.__setattr__(self, "database_path", _resolved(self.database_path))
        if self.data_path:
            object.__setattr__(self, "data_path", _resolved(self.data_path))
        if self.archive.path:
            object.__setattr__(self, "archive", replace(self.archive, path=_resolved(self.archive.path)))

    @property
    def port(self) -> int:
        """The port to listen on: as set, or 8443 with TLS and 8080 without; 0 takes any free one."""
        if self.listen_port is not None:
            return self.listen_port
        return 8443 if self.tls_cert_path else 8080

    @property
    def database(self) -> Path:
        """The path of the hot database."""
        return Path(self.database_path)

    @property
    def data(self) -> Path:
        """The path of the data directory, which holds what does not lie in the database."""
        return Path(self.data_path) if self.data_path else self.database.with_suffix(".data")

    @property
    def work(self) -> Path:
        """The folder for the files that exist only while a cleanup run does."""
        return self.data / "work"

    @property
    def archive_path(self) -> Path:
        """The path of the archive's table."""
        return Path(self.archive.path) if self.archive.path else self.data / "archive"

    @property
    def policy(self) -> PolicySettings:
        """The settings that decide what is deleted."""
        return PolicySettings(self.message_retention, self.token_ttl_seconds, self.invite_ttl_seconds)

    def to_json(self) -> str:
        """Return the settings for another process; ``from_json`` reads them."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Build from what ``to_json`` returned."""
        return cls.from_mapping(json.loads(text))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build from values that are as in the fields, tables as mappings."""
        return cls(**{name: _TABLES[name](**value) if name in _TABLES else value for name, value in values.items()})


_TABLES = {
    "cleanup": CleanupConfig,
    "spark": SparkConfig,
    "archive": ArchiveConfig,
    "limits": LimitsConfig,
    "admin": AdminConfig,
}


def _resolved(path: str) -> str:
    # Not by Path.resolve, to which links in a circle are an error of its own kind; here opening the file tells.
    return os.path.realpath(path)


_NOT_EMPTY = validate.Length(min=1, error="must not be empty")
_PATH = [_NOT_EMPTY, validate.ContainsNoneOf("\0", error="must not hold a zero byte")]
_PORT = validate.Range(0, 65535, error="must be between 0 and 65535")


class _CleanupSchema(Schema):
    class Meta:
        unknown = RAISE

    engine = Text(validate=validate.OneOf(["spark", "sql"], error='must be "spark" or "sql"'))
    max_run_time = Duration()
    disk_reserve = Size()


class _SparkSchema(Schema):
    class Meta:
        unknown = RAISE

    master = Text(
        validate=validate.Regexp(
            r"(local\[[1-9][0-9]*\]|spark://[A-Za-z0-9._-]+:[1-9][0-9]{0,4})\Z",
            error='must be "local[N]", N worker threads, or "spark://HOST:PORT"',
        )
    )
    driver_memory = Text(
        validate=validate.Regexp(
            r"([5-9][0-9]{2}|[1-9][0-9]{3,5})m\Z|[1-9][0-9]{0,2}g\Z",
            error='must be a size of at least "500m", as in "1g"',
        )
    )


class _ArchiveSchema(Schema):
    class Meta:
        unknown = RAISE

    after = Duration(words=True, validate=validate.NoneOf([AFTER_FETCH], error='must be a duration or "-1"'))
    path = Text(
        validate=[
            *_PATH,
            validate.Regexp(
                r"(?![A-Za-z][A-Za-z0-9+.-]*:)",
                error="must be a folder, on this machine or shared; an address with a scheme is refused",
            ),
        ]
    )
    margin = Duration(words=True, validate=validate.NoneOf([KEEP], error='must be a duration or "0"'))
    erase_delay = Duration(words=True, validate=validate.NoneOf([KEEP], error='must be a duration or "0"'))


_FAILURES = validate.Range(1, MAX_FAILURES, error=f"must be between 1 and {MAX_FAILURES}")


class _LimitsSchema(Schema):
    class Meta:
        unknown = RAISE

    trusted_proxies = Networks()
    login_failures = StrictInteger(validate=_FAILURES)
    login_failures_per_address = StrictInteger(validate=_FAILURES)
    registrations_per_address = StrictInteger(validate=_FAILURES)
    login_window = Duration()
    response_memory = Text(
        validate=validate.Regexp(
            r"(6[4-9]|[7-9][0-9]|[1-9][0-9]{2,5})m\Z|[1-9][0-9]{0,2}g\Z",
            error='must be a size of at least "64m", as in "1g"',
        )
    )


class _AdminSchema(Schema):
    class Meta:
        unknown = RAISE

    listen_address = Text(validate=_NOT_EMPTY)
    listen_port = StrictInteger(validate=_PORT)


_LIFETIME = validate.Range(1, MAX_SECONDS, error=f"must be between 1 and {MAX_SECONDS} seconds")


class _ConfigSchema(Schema):
    class Meta:
        unknown = RAISE

    listen_address = Text(validate=_NOT_EMPTY)
    listen_port = StrictInteger(validate=_PORT)
    database_path = Text(validate=_PATH)
    data_path = Text(validate=_PATH)
    token_ttl_seconds = StrictInteger(validate=_LIFETIME)
    invite_ttl_seconds = StrictInteger(validate=_LIFETIME)
    message_retention = Duration(words=True)
    cleanup_interval = Duration()
    registration_enabled = StrictBoolean()
    registration_token = Text(
        validate=validate.Regexp(r"[a-zA-Z0-9_-]+\Z", error="may hold only letters, digits, _ and -, at least one")
    )
    auth_header = Text(validate=validate.Regexp(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z", error="is not the name of a header"))
    tls_cert_path = Text(validate=_PATH)
    tls_key_path = Text(validate=_PATH)
    cleanup = Nested(_CleanupSchema)
    spark = Nested(_SparkSchema)
    archive = Nested(_ArchiveSchema)
    limits = Nested(_LimitsSchema)
    admin = Nested(_AdminSchema)


def load_config(path: Path | None = None, advise: Advise = lambda *_: None) -> Config:
    """Read the settings from ``path``, else from the first of SEARCH_PATHS that exists, else the defaults.

    Raises ConfigError with one line for each fault.
    """
    found = path or next((candidate for candidate in SEARCH_PATHS if candidate.is_file()), None)
    if found is None:
        return parse_config("", "the built-in defaults")
    try:
        text = found.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(found), [f"cannot be read: {error}"]) from error
    return parse_config(text, str(found), advise)


def parse_config(text: str, source: str, advise: Advise = lambda *_: None) -> Config:
    """Read the settings from TOML ``text``; ``source`` names it in errors. Raises ConfigError."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(source, [f"is not TOML: {error}"]) from error
    faults: list[str] = []
    loaded: dict[str, Any] = {}
    try:
        loaded = _ConfigSchema().load(values)
    except ValidationError as error:
        faults = list(_faults(error.messages_dict, _ConfigSchema()))
    if ("tls_cert_path" in values) != ("tls_key_path" in values):
        faults.append("tls_cert_path and tls_key_path: set both for TLS, or neither")
    if faults:
        raise ConfigError(source, faults)
    try:
        config = Config.from_mapping(loaded)
    except OSError as error:
        raise ConfigError(source, [f"database_path: there is no working directory: {error.strerror}"]) from error
    faults = [*_contradictions(config), *_left_beside_a_link(config, values)]
    if faults:
        raise ConfigError(source, faults)
    for name, value in _in_bare_months(values, _ConfigSchema()):
        advise(name, f'"{value}" means months of 30 days; write it as "{value}o", or minutes as "{value}in"')
    return config


def _in_bare_months(values: Mapping[str, Any], schema: Schema, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the durations whose unit is easily misread: setting and value. ``values`` are known to be valid."""
    for name, value in values.items():
        declared = schema.fields[name]
        if isinstance(declared, Nested):
            yield from _in_bare_months(value, declared.schema, f"{prefix}{name}.")
        elif isinstance(declared, Duration) and is_in_bare_months(value):
            yield prefix + name, value


def _left_beside_a_link(config: Config, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if the data directory lies beside a link to the database, where former versions looked for it."""
    named = Path(values.get("database_path", Config.database_path)).absolute().with_suffix(".data")
    if not config.data_path and named.is_dir() and not config.data.exists():
        yield (
            f"data_path: {named} lies beside a link; it is looked for beside the database itself: move it to"
            f" {config.data}, or set data_path to it"
        )


def _contradictions(config: Config) -> Iterator[str]:
    """Yield a line for each setting that does not go with another."""
    if config.data == config.database:
        yield "data_path: is the database's own path; set another"
    if config.archive.after != KEEP and config.cleanup.engine != "spark":
        yield 'archive.after: messages move by Spark only: set [cleanup] engine = "spark", or leave it at "-1"'
    folder, work, database = config.archive_path, config.work, config.database
    if work in (folder, *folder.parents) or folder in (database, *database.parents, *work.parents):
        yield "archive.path: must be a folder of its own, which holds nothing else of the server"


def _faults(messages: Mapping[str, Any], schema: Schema, prefix: str = "") -> Iterator[str]:
    """Yield a line for each fault in a marshmallow error."""
    for name, found in messages.items():
        declared = schema.fields.get(name)
        if isinstance(found, dict) and isinstance(declared, Nested):
            yield from _faults(found, declared.schema, f"{prefix}{name}.")
        elif declared is None and name != "_schema":
            near = difflib.get_close_matches(name, schema.fields, n=1)
            yield f"{prefix}{name}: unknown setting" + (f"; did you mean {near[0]}?" if near else "")
        else:
            yield f"{prefix.rstrip('.') if name == '_schema' else prefix + name}: {' '.join(map(str, found))}"


def setting_names(of: type = Config, prefix: str = "") -> list[str]:
    """Return the names of all settings, those in tables as ``table.name``."""
    names: list[str] = []
    for each in fields(of):
        nested = _TABLES.get(each.name)
        names += setting_names(nested, f"{each.name}.") if nested else [prefix + each.name]
    return names
