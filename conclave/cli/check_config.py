"""The ``conclave check-config`` command."""

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from conclave.cli.common import CONFIG_VARIABLE, use_console_log
from conclave.cli.tables import FILE_WIDTH, counted, visible
from conclave.clock import SystemClock
from conclave.config.fields import Duration
from conclave.config.load import BUILT_IN, ConfigError, each_setting, find_config, load_config
from conclave.config.settings import Config, ConfigSchema
from conclave.config.warnings import ConfigWarning, find_warnings, unknown_group
from conclave.retention.durations import duration_words
from conclave.retention.policy import AFTER_FETCH, KEEP
from conclave.server.start_check import find_refusals
from conclave.server.tls import TlsError, load_context, warn_if_invalid
from conclave.store.engine.faults import StoreError
from conclave.store.ledger import book
from conclave.store.ledger.book import LedgerError
from spark import requirements
from spark.rehearsal import Comparison, Erasure, compare
from spark.requirements import RequirementError

_WORDS = {KEEP: "off", AFTER_FETCH: "delete-after-fetch"}


@dataclass
class _CheckResult:
    """The result of a check."""

    source: str
    database: str = ""
    """The path."""
    faults: list[str] = field(default_factory=list)
    warnings: list[ConfigWarning] = field(default_factory=list)
    durations: dict[str, int] = field(default_factory=dict)
    uncompared: str = ""
    """Why the configuration was not compared with its database, or ""."""
    foresight: Comparison | None = None
    """What the configuration would change in its database."""


@click.command("check-config")
@click.argument(
    "file", metavar="[FILE]", required=False, type=click.Path(path_type=Path, readable=False), envvar=CONFIG_VARIABLE
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object; times in seconds.")
def check_config(file: Path | None, *, as_json: bool) -> None:
    """Check a configuration, and show what it would change.

    It is compared with the settings in force in its database. Nothing is modified. FILE is the file to check;
    default: $CONCLAVE_CONFIG, ./conclave.toml, /etc/conclave/config.toml, built-in defaults.
    """
    use_console_log()  # expired certificates are logged, as at a start
    found = _check(file)
    if as_json:
        values = asdict(found) | {"warnings": [each._asdict() for each in found.warnings]}
        click.echo(json.dumps(values))
    else:
        _show(found, Console())
    if found.faults:
        sys.exit(1)


def _check(path: Path | None) -> _CheckResult:
    found = _CheckResult(BUILT_IN)
    try:
        if source := path or find_config():
            found.source = str(source)
        config = load_config(source, lambda setting, means: found.warnings.append(ConfigWarning(setting, means)))
    except ConfigError as error:
        found.source, found.faults = error.source, error.faults
        return found
    found.database = config.database_path
    found.warnings += find_warnings(config)
    _check_next_start(config, found)
    found.durations = dict(_durations(config))
    try:
        is_there = os.path.lexists(config.vault_path)  # otherwise the first start creates it
        book.require_writable(config.ledger_path if is_there else config.vault_path)
    except LedgerError as error:
        found.warnings.append(ConfigWarning("vault.path", str(error)))
    _compare(config, found)
    return found


def _check_next_start(config: Config, found: _CheckResult) -> None:
    """Record why a start or a run would be refused. Reasons that depend on the user are only warnings."""
    with suppress(TlsError):
        if context := load_context(config):
            warn_if_invalid(context, config)
    refused = [(each.says, each.is_of_user) for each in find_refusals(config, SystemClock())]
    try:
        _require_secret(config)
    except RequirementError as error:
        refused.append((str(error), isinstance(error.__cause__, PermissionError)))
    for says, is_of_user in refused:
        if is_of_user:
            setting, _, means = says.partition(": ")
            found.warnings.append(ConfigWarning(setting, means))
        else:
            found.faults.append(says)


def _require_secret(config: Config) -> None:
    """Raise RequirementError if cleanup is to use a cluster but cannot."""
    if config.cleanup.engine == "spark":
        requirements.require_secret(config.spark.master)


def _compare(config: Config, found: _CheckResult) -> None:
    try:
        found.foresight = compare(config.database, config.policy, SystemClock())
    except (StoreError, sqlite3.Error, OSError) as error:
        found.uncompared = str(error)
        return
    if found.foresight is None:
        found.uncompared = f"{config.database}: has not been used by a server yet"
    else:
        found.warnings += map(unknown_group, found.foresight.unknown_groups)


def _durations(config: Config) -> Iterator[tuple[str, int]]:
    """Yield every duration setting and its seconds; those in nested tables only if they are set."""
    for name, value, declared in each_setting(asdict(config), ConfigSchema()):
        is_length = isinstance(declared, Duration) or name.endswith("_seconds")
        if is_length and (value != KEEP or name.count(".") < 2):
            yield name, value


def _show(found: _CheckResult, console: Console) -> None:
    for line in found.faults:
        click.echo(f"conclave: {visible(f'{found.source}: {line}')}", err=True)
    if not found.durations:
        return  # not readable
    says = "the server would refuse to start" if found.faults else "valid"
    table = Table("setting", "seconds", "in words", title=f"{visible(str(found.source))}: {says}")
    table.columns[0].overflow = "fold"  # names with ids of groups are long
    table.columns[1].no_wrap = table.columns[2].no_wrap = True
    if not console.is_terminal:
        console.width = FILE_WIDTH
    table.columns[1].justify = "right"
    for name, seconds in found.durations.items():
        words = _WORDS.get(seconds, "") if name == "message_retention" else ""
        table.add_row(visible(name), f"{seconds:,}", words or duration_words(seconds))
    console.print(table)
    lines = [f"database: {found.database}"] if found.foresight else []
    lines += [f"warning: {each.setting}: {each.means}" for each in found.warnings]
    lines += _comparison(found.foresight) if found.foresight else [f"not compared with a database: {found.uncompared}"]
    for line in lines:
        console.print(visible(line), soft_wrap=True, markup=False, highlight=False)


def _comparison(seen: Comparison) -> Iterator[str]:
    """Yield lines about what the configuration would change in its database."""
    change = seen.change
    if seen.clock_fault:
        yield f"warning: the clock is wrong: {seen.clock_fault}; until then no server starts with a changed policy"
    if not seen.differing:
        yield "the policy is unchanged"
    else:
        yield f"changed: {', '.join(seen.differing)}: affects the policy of {counted(change.groups, 'group')}"
        at_most = "" if change.is_exact else "at most "
        yield (
            f"starting with it would hide {counted(change.messages, 'message')} ({change.body_bytes:,} bytes) in the"
            f" database and {at_most}{change.archived:,} ({change.archived_bytes:,} bytes) in the archive,"
            f" in {counted(change.hiding, 'group')}"
        )
        if change.sooner:
            yield f"in {counted(change.sooner, 'group')}, messages may be erased earlier than before"
    yield f"a run under the settings in force would erase {_erased(seen.now_erased)}"
    if seen.differing:
        yield f"a run after a start with it would erase {_erased(seen.then_erased)}"


def _erased(run: Erasure) -> str:
    at_most = "" if run.is_exact else "at most "
    return (
        f"{counted(sum(run.counts.values()), 'message')} ({run.body_bytes:,} bytes) in the database and {at_most}"
        f"{run.archived:,} ({run.archived_bytes:,} bytes) in the archive, in {counted(run.groups, 'group')}"
    )
