"""Suggests how to correct a misplaced, unknown or invalid setting. Pure functions."""

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from marshmallow import Schema
from marshmallow.fields import Nested

from conclave.config.settings import Config, ConfigSchema

_EXAMPLES = {
    "database_path": "conclave.db",
    "listen_port": 8080,
    "data_path": "/var/lib/conclave/data",
    "registration_token": "letters-and-digits",
    "tls_cert_path": "/etc/conclave/cert.pem",
    "tls_key_path": "/etc/conclave/key.pem",
    "archive.path": "/var/lib/conclave/archive",
    "vault.path": "/var/lib/conclave-vault",
    "vault.copies": ["/mnt/vault-copy/conclave.vault"],
    "admin.token_file": "/etc/conclave/admin-token",
    "admin.hosts": ["ops.example.org"],
    "web.allowed_origins": ["https://chat.example.org"],
    "limits.trusted_proxies": ["127.0.0.1"],
}
"""Examples for settings without a default, or whose default is not a good example."""

_TABLE_EXAMPLES = {"must be a table": "[{}]", "must be a list of tables": "[[{}]]"}

_TYPE_FAULTS = ("must be an integer", "must be a string", "must be true or false", "must be a list of strings")
"""The faults for which an example is useful."""

_AMBIGUOUS = ("min", "max", "interval")
"""Names that are too general to suggest their table."""

_UNQUOTED = re.compile(r"=\s*-?[0-9]+\s*[a-z]+\s*(#.*)?$")
_BOOLEAN = re.compile(r"=\s*(True|False|yes|no|on|off|None|null)\s*(#.*)?$", re.IGNORECASE)
_LINE_NUMBER = re.compile(r"at line (\d+)")


def of_unknown(name: str, schema: Schema) -> str:
    """Return the fault for a setting that ``schema`` does not have."""
    tables = _tables()
    normalized = _plain(name)
    if normalized in schema.fields:
        return f"unknown setting; did you mean {normalized}?"
    matching = [table for table, fields in tables.items() if normalized in fields and normalized not in _AMBIGUOUS]
    if matching:
        return f"belongs {_below(matching[0])}"
    longer = [each for each in schema.fields if each.endswith(f"_{normalized}")]
    if near := longer or difflib.get_close_matches(normalized, schema.fields, n=1):
        return f"unknown setting; did you mean {near[0]}?"
    for table, fields in tables.items():
        if near := difflib.get_close_matches(normalized, fields, n=1, cutoff=0.8):
            return f"unknown setting; did you mean {near[0]}, {_below(table)}?"
    return "unknown setting; docs/configuration.md lists all"


def with_example(name: str, fault: str) -> str:
    """Return the fault of setting ``name``, with an example if its type is wrong."""
    if fault in _TABLE_EXAMPLES:
        return f"{fault}, as in {_TABLE_EXAMPLES[fault].format(name)}"
    if not fault.startswith(_TYPE_FAULTS):
        return fault
    example = _EXAMPLES.get(name)
    value: Any = asdict(Config())
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    example = value if example is None else example
    return fault if example is None else f"{fault}, as in {name.rpartition('.')[2]} = {json.dumps(example)}"


def of_syntax(text: str, fault: str) -> str:
    """Return a suggestion for a text that is not TOML."""
    match = _LINE_NUMBER.search(fault)
    lines = text.splitlines()
    line = lines[min(int(match[1]), len(lines)) - 1] if match and lines else ""
    if _UNQUOTED.search(line):
        return ': a duration or a size needs quotes, as in "30d"'
    if _BOOLEAN.search(line):
        return ": write true or false in lower case; text needs quotes"
    if "overwrite" in fault or "twice" in fault.lower() or "declare" in fault:
        return ": a setting or table occurs twice: remove one"
    return ': a line is NAME = VALUE or [table], and text needs quotes, as in NAME = "text"'


def _tables() -> dict[str, list[str]]:
    """Return the settings of each table. The top level has the name ""; nested tables have dotted names."""
    return dict(_within(ConfigSchema(), ""))


def _within(schema: Schema, table: str) -> Iterator[tuple[str, list[str]]]:
    inner = {name: each.schema for name, each in schema.fields.items() if isinstance(each, Nested)}
    yield table, [name for name in schema.fields if name not in inner]
    for name, each in inner.items():
        yield from _within(each, f"{table}.{name}".lstrip("."))


def _below(table: str) -> str:
    return f"below [{table}]" if table else "at the top of the file, above the first [table]"


def _plain(name: str) -> str:
    """Return a name in lower case with underscores."""
    return name.lower().replace("-", "_")
