"""Reads the settings from TOML, and reports all faults at once."""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from marshmallow import Schema, ValidationError
from marshmallow.fields import Dict, Field, List, Nested

from conclave.config import admin, remedies, retention
from conclave.config.fields import Duration
from conclave.config.settings import Config, ConfigSchema
from conclave.retention.durations import is_in_bare_months
from conclave.retention.policy import KEEP

SEARCH_PATHS = (Path("conclave.toml"), Path("/etc/conclave/config.toml"))

BUILT_IN = "the built-in defaults"
"""The source of the settings without a file."""

Advise = Callable[[str, str], None]
"""Called with the name of a valid setting that is easily misread, and its meaning."""


class ConfigError(Exception):
    """The configuration is invalid: one line for each fault."""

    def __init__(self, source: str, faults: list[str]) -> None:
        """``source``: the file. ``faults``: one line each."""
        self.source = source
        self.faults = faults
        super().__init__("\n".join(f"{source}: {fault}" for fault in faults))


def find_config() -> Path | None:
    """Return the first of SEARCH_PATHS that exists, or None. Raises ConfigError if a path cannot be accessed.

    Skipping such a path would apply wrong settings. For the same reason, broken links and folders count as existing:
    reading them reports the fault. Container engines create a folder if a mounted file is missing.
    """
    for candidate in SEARCH_PATHS:
        try:
            candidate.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:  # sudo keeps the working directory, which may be closed to the server's user
            where = "the working directory" if candidate.parent == Path() else candidate.parent
            fault = f"cannot be looked for: {where}: {error.strerror}: name the file that is meant"
            raise ConfigError(str(candidate), [fault]) from error
        return candidate
    return None


def load_config(path: Path | None = None, advise: Advise = lambda *_: None) -> Config:
    """Read the settings from ``path``, or from the first of SEARCH_PATHS that exists, or use the defaults.

    Raises ConfigError.
    """
    source = path or find_config()
    if source is None:
        return parse_config("", BUILT_IN)
    try:
        text = source.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(str(source), [f"cannot be read: {_unreadable(error)}"]) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        fault = f"cannot be read: it is not UTF-8, at byte {error.start}, in line {line}: save it as UTF-8"
        raise ConfigError(str(source), [fault]) from error
    return parse_config(text, str(source), advise)


def _unreadable(error: OSError) -> str:
    """Return why a file cannot be read, and what to do."""
    match error:
        case FileNotFoundError():
            remedy = "use a file that exists"
        case IsADirectoryError():
            remedy = "use the file in that folder"
        case PermissionError():
            remedy = "make it readable for the user that runs this"
        case _:
            return str(error.strerror)
    return f"{error.strerror}: {remedy}"


def parse_config(text: str, source: str, advise: Advise = lambda *_: None) -> Config:
    """Read the settings from TOML ``text``; ``source`` names it in errors. Raises ConfigError."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(source, [f"is not TOML: {error}{remedies.of_syntax(text, str(error))}"]) from error
    except RecursionError as error:
        raise ConfigError(source, ["is not TOML: lists or tables in each other, too deep to read"]) from error
    faults: list[str] = []
    loaded: dict[str, Any] = {}
    try:
        loaded = ConfigSchema().load(values)
    except ValidationError as error:
        faults = list(_faults(error.messages_dict, ConfigSchema()))
        if isinstance(error.valid_data, dict):
            loaded = error.valid_data  # includes the valid settings of sections with faults
            loaded["retention"] = retention.valid_parts(
                loaded.get("retention", {}), error.messages_dict.get("retention")
            )
    if ("tls_cert_path" in values) != ("tls_key_path" in values):
        faults.append("tls_cert_path and tls_key_path: set both for TLS, or neither")
    try:
        config = Config.from_mapping(loaded)
    except OSError as error:
        raise ConfigError(source, [f"database_path: there is no working directory: {error.strerror}"]) from error
    faults += _contradictions(config)  # checks the valid settings, to report all faults at once
    if faults:
        raise ConfigError(source, faults)
    for name, value, declared in each_setting(values, ConfigSchema()):
        if isinstance(declared, Duration) and is_in_bare_months(value):
            advise(name, f'"{value}" means months of 30 days; write it as "{value}o", or minutes as "{value}in"')
    return config


def each_setting(values: Mapping[str, Any], schema: Schema, prefix: str = "") -> Iterator[tuple[str, Any, Field[Any]]]:
    """Yield the name, value and field of each setting, including those in nested tables and lists.

    ``values``: must be valid. Entries of lists are numbered from 1.
    """
    for name, value in values.items():
        yield from _within(value, schema.fields[name], prefix + name)


def _within(value: Any, declared: Field[Any], name: str) -> Iterator[tuple[str, Any, Field[Any]]]:
    match declared:
        case Nested():
            yield from each_setting(value, declared.schema, f"{name}.")
        case List():
            for number, each in enumerate(value, 1):
                yield from _within(each, declared.inner, f"{name}.{number}")
        case Dict() if declared.value_field:
            for key, each in value.items():
                yield from _within(each, declared.value_field, f"{name}.{key}")
        case _:
            yield name, value, declared


def _contradictions(config: Config) -> Iterator[str]:
    """Yield a line for each contradiction between settings."""
    if config.data == config.database:
        yield "data_path: is the database's own path; set another"
    if config.archive.after != KEEP and config.cleanup.engine != "spark":
        yield 'archive.after: messages move by Spark only: set [cleanup] engine = "spark", or leave it at "-1"'
    yield from admin.contradictions(config.admin)
    yield from retention.contradictions(config.retention, config.message_retention)
    if config.vault_path in config.vault_copies:
        yield "vault.copies: contains the vault itself; put the copy elsewhere, preferably on another disk"
    if config.vault_path in (config.data, config.archive_path, *config.database.parents):
        yield "vault.path: must be a separate folder, without other files of the server"
    folder, work, database = config.archive_path, config.work, config.database
    if work in (folder, *folder.parents) or folder in (database, *database.parents, *work.parents):
        yield "archive.path: must be a separate folder, without other files of the server"


def _faults(messages: Mapping[str, Any], schema: Schema, prefix: str = "") -> Iterator[str]:
    """Yield a line for each fault in a marshmallow error."""
    for name, field_messages in messages.items():
        declared = schema.fields.get(name)
        if declared:
            yield from _faults_of(field_messages, declared, prefix + name)
        elif name == "_schema":
            table = prefix.rstrip(".")
            yield f"{table}: {remedies.with_example(table, ' '.join(map(str, field_messages)))}"
        else:
            yield f"{prefix}{name}: {remedies.of_unknown(name, schema)}"


def _faults_of(messages: Any, declared: Field[Any], name: str) -> Iterator[str]:
    """Yield a line for each fault of one setting. Entries of lists are numbered from 1."""
    if not isinstance(messages, dict):
        yield f"{name}: {remedies.with_example(name, ' '.join(map(str, messages)))}"
    elif isinstance(declared, Nested):
        yield from _faults(messages, declared.schema, f"{name}.")
    elif isinstance(declared, List):
        for index, each in messages.items():
            yield from _faults_of(each, declared.inner, f"{name}.{index + 1}")
    elif isinstance(declared, Dict) and declared.value_field:
        for key, each in messages.items():
            yield from (f"{name}: {' '.join(map(str, faults))}" for faults in [each.get("key")] if faults)
            if "value" in each:
                yield from _faults_of(each["value"], declared.value_field, f"{name}.{key}")
