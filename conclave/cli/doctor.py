"""The ``conclave doctor`` command."""

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from conclave.cli.common import config_option
from conclave.cli.tables import visible
from conclave.clock import SystemClock
from conclave.config.load import BUILT_IN, ConfigError, find_config, load_config
from conclave.config.settings import Config
from conclave.config.warnings import find_warnings
from conclave.doctor import database, files, machine
from conclave.doctor.findings import Finding, Level, note, ok, run_check, wrong
from conclave.server.start_check import find_refusals
from spark import requirements
from spark.requirements import RequirementError, find_jars, find_java
from spark.session import spark_version

_COLORS = {Level.OK: "green", Level.NOTE: "yellow", Level.WRONG: "red"}


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def doctor(path: Path | None, *, as_json: bool) -> None:
    """Check the installation, and suggest remedies.

    It checks the machine, the files and the database, whether the server is running or not. Nothing is changed. Exit
    status 1 if a check fails.
    """
    found = []
    for each in _findings(path):
        found.append(each)
        if not as_json:
            _show(each)
    status = Level.WRONG if any(each.level is Level.WRONG for each in found) else Level.OK
    if as_json:
        click.echo(json.dumps({"status": status, "findings": [each._asdict() for each in found]}))
    if status is Level.WRONG:
        sys.exit(1)


def _findings(path: Path | None) -> Iterator[Finding]:
    yield from machine.sqlite_library()
    yield from machine.open_files()
    misread: list[Finding] = []
    try:
        source = path or find_config()
        config = load_config(
            source,
            lambda setting, means: misread.append(note("configuration", f"{setting}: {means}", "write it in full")),
        )
    except ConfigError as error:
        yield from _java(None)
        for fault in error.faults:
            yield wrong("configuration", f"{error.source}: {fault}", "correct it, then run doctor again")
        return
    yield from _java(config)
    yield ok("configuration", f"{source or BUILT_IN}: valid")
    yield from misread
    for doubt in find_warnings(config):
        yield note("configuration", f"{doubt.setting}: {doubt.means}", "see `conclave check-config`")
    yield from _proxies(config)
    yield from run_check("disk", partial(machine.disk, config))
    yield from run_check("permissions", partial(files.permissions, config, source))
    yield from run_check("archive", partial(files.archive_log, config))
    yield from run_check("locks", partial(files.held_locks, config))
    yield from run_check("start", partial(_next_start, config))
    runs = partial(files.is_served, config)
    yield from run_check("ports", partial(machine.ports, config, runs))
    yield from run_check("database", partial(database.database, config, SystemClock(), is_running=runs()))


def _java(config: Config | None) -> Iterator[Finding]:
    """Yield whether cleanup can use Java. ``config``: None if it cannot be read."""
    is_needed = config is None or config.cleanup.engine == "spark"
    try:
        java, version = find_java()
        yield ok("java", f"{version}: {java}")
    except RequirementError as error:
        says, _, remedy = str(error).partition(": ")
        yield wrong("java", says, remedy) if is_needed else ok("java", f'{says}; not needed with engine = "sql"')
    yield ok("spark", f"version {spark_version()}")
    try:
        yield ok("spark", f"the archive's jars are in {find_jars()[0].parent}")
    except RequirementError as error:
        is_archiving = config is not None and config.archive.after >= 0
        says, _, remedy = str(error).partition(": ")
        yield wrong("spark", says, remedy) if is_archiving else ok("spark", f"{says}; not needed without [archive]")
    if config is not None and config.cleanup.engine == "spark":
        yield from _spark(config)


def _spark(config: Config) -> Iterator[Finding]:
    """Yield whether Spark could start with this configuration."""
    try:
        requirements.require_secret(config.spark.master)
    except RequirementError as error:
        yield wrong("spark", str(error), "see docs/operations/cluster.md#setting-it-up")
    try:
        requirements.require_zstd(config.work)
        yield ok("spark", "its native library can be loaded")
    except RequirementError as error:
        says, _, remedy = str(error).partition(": ")
        level = wrong if config.archive.after >= 0 else note
        yield level("spark", says, remedy)


def _next_start(config: Config) -> Iterator[Finding]:
    """Yield why the next start would be refused, except for reasons that depend on the user: see permissions."""
    found = [each for each in find_refusals(config, SystemClock()) if not each.is_of_user]
    for each in found:
        yield wrong("start", f"would be refused: {each.says}", "correct this before the next start")
    if not found:
        yield ok("start", "no obstacles found")


def _proxies(config: Config) -> Iterator[Finding]:
    if config.limits.trusted_proxies:
        yield ok("proxies", f"trusted for client addresses: {', '.join(config.limits.trusted_proxies)}")
    else:
        says = "no reverse proxy is trusted: behind one, all clients share one address"
        yield note("proxies", says, "if there is one, add it to [limits] trusted_proxies")


def _show(found: Finding) -> None:
    level = click.style(f"{found.level:<6}", fg=_COLORS[found.level])
    click.echo(f"{level}{found.about}: {visible(found.says)}")
    if found.remedy:
        click.echo(f"      -> {visible(found.remedy)}")
