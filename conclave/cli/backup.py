"""The ``conclave backup`` commands, and ``conclave restore``."""

import json
import os
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from conclave.backup import checking, manifest, restoring, vault
from conclave.backup.destination import KeptBackup, backups_in
from conclave.backup.making import BackupResult, make as make_backup
from conclave.backup.manifest import BackupError, Manifest
from conclave.cli.common import command_config, config_option, exit_on_signals, one_line_errors
from conclave.cli.tables import counted, print_table, second, visible
from conclave.clock import Clock, SystemClock
from conclave.config.load import ConfigError
from conclave.config.settings import Config
from conclave.logs.setup import get_logger
from spark import run
from spark.environment import CleanupError, RunEnvironment

NICENESS = 10
"""The nice value of a backup, lower in priority than the server."""

MAX_SHOWN = 20
"""The most names that are printed."""

WITHOUT_LEDGER = (
    "the ledger is incomplete: groups deleted, members removed and passwords changed since the backup may be back"
)

log = get_logger(__name__)

_folder = click.Path(path_type=Path, readable=False)  # the error when reading it says more


class _BackupGroup(click.Group):
    """A group whose first argument is a command, or otherwise the destination of a new backup."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert ``make`` if the first argument is not a command."""
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = ["make", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_BackupGroup,
    short_help="Make, list and verify backups.",
    subcommand_metavar="[--keep N] [--vault-copy PATH] DEST | COMMAND [ARGS]...",
)
def backup() -> None:
    """Make a backup in the folder DEST, or list and verify backups.

    With --keep N, the oldest complete backups are removed until N are left. --vault-copy PATH updates a copy of the
    vault in the folder PATH, which must be outside DEST, since a backup must not contain the keys of its messages.
    --config PATH names the TOML file. Write a folder with the name of a command as ./list.
    """


@backup.command(hidden=True)
@config_option
@click.option("--keep", type=click.IntRange(min=1), help="Then remove the oldest, until N are left.", metavar="N")
@click.option("--vault-copy", type=_folder, help="Also update a copy of the vault in this folder.", metavar="PATH")
@click.argument("dest", type=_folder)
def make(path: Path | None, keep: int | None, vault_copy: Path | None, dest: Path) -> None:
    """Make a backup in the folder DEST. The server may be running. Exit status 1 if damage was found."""
    os.nice(NICENESS)
    with exit_on_signals(), one_line_errors(ConfigError, BackupError):
        config = command_config(path)
        if vault_copy and vault_copy.resolve().is_relative_to(dest.resolve()):
            raise BackupError(f"--vault-copy: {vault_copy} is inside {dest}: backups must not contain the keys")
        done = make_backup(config, SystemClock(), dest, keep, lambda: log.info("waiting_for_another_run"))
        if vault_copy:
            vault.copy(config, vault_copy)
    click.echo(f"{visible(str(done.path))}: {counted(done.manifest.messages, 'message')}, {done.manifest.size:,} bytes")
    if done.manifest.archive:
        click.echo(
            f"archive: {done.copied_bytes:,} bytes copied, {done.shared_bytes:,} shared with the server or a backup"
        )
    if vault_copy:
        click.echo(f"vault copied to {visible(str(vault_copy))}")
    elif not config.vault.copies:
        click.echo(
            f"note: the backup cannot be read without {visible(str(config.vault_path))}, which has no copy: set"
            " vault.copies, or use --vault-copy",
            err=True,
        )
    click.echo(f"cleanup was blocked for {done.locked_seconds:.1f} s")
    for name in done.removed:
        click.echo(f"removed: {visible(name)}")
    _report_damage(done)


def _report_damage(done: BackupResult) -> None:
    """Print damage of the archive, and exit with status 1 if there is any."""
    faults = done.manifest.faults
    for note in done.notes:
        click.echo(f"conclave: {visible(note)}", err=True)
    for name, fault in sorted(faults.items()):
        click.echo(f"conclave: {visible(str(done.path / name))}: {fault}; no backup here has an intact copy", err=True)
    if faults or done.notes:
        found = "the backup is marked as damaged; --keep does not count it" if faults else "the backup is intact"
        click.echo(f"conclave: {found}: see docs/operations/backup.md#a-damaged-archive", err=True)
        sys.exit(1)


@backup.command("list", short_help="List the backups in DEST.")
@click.argument("dest", type=_folder)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; times in Unix seconds.")
def list_backups(dest: Path, *, as_json: bool) -> None:
    """Print the backups in the folder DEST, oldest first, from their manifests."""
    with one_line_errors(BackupError):
        kept = list(backups_in(dest))
    if as_json:
        for each in kept:
            click.echo(json.dumps({"path": str(each.path), "fault": each.fault} | _as_json(each.manifest)))
    else:
        _print(kept)
    if any(each.fault for each in kept):
        sys.exit(1)


@backup.command(short_help="Verify a backup.")
@click.argument("src", type=_folder)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def verify(src: Path, *, as_json: bool) -> None:
    """Read the whole backup SRC, and print differences from its manifest. Exit status 1 if there are any."""
    with one_line_errors(BackupError):
        contents = manifest.read(src)
        faults = [fault.text for fault in checking.find_faults(src, contents)]
    if as_json:
        click.echo(json.dumps({"path": str(src), "faults": faults} | _as_json(contents)))
    else:
        for fault in faults:
            click.echo(visible(fault))
    if faults:
        click.echo(f"conclave: the backup is damaged: {counted(len(faults), 'fault')}", err=True)
        sys.exit(1)
    if not as_json:
        click.echo(f"the backup is intact: {counted(len(contents.files), 'file')}, {contents.size:,} bytes")


def _as_json(contents: Manifest | None) -> dict[str, object]:
    """Return a manifest for JSON, without its files, which are too many."""
    if contents is None:
        return {}
    archive = asdict(contents.archive) if contents.archive else None
    return {
        "product": contents.product,
        "schema": contents.schema,
        "number": contents.number,
        "made_at": contents.made_at,
        "messages": contents.messages,
        "bytes": contents.size,
        "files": len(contents.files),
        "archive": archive,
        "damaged": [f"{name}: {fault}" for name, fault in sorted(contents.faults.items())],
    }


def _print(kept: list[KeptBackup]) -> None:
    table = Table("backup", "made (UTC)", "messages", "bytes", "archive", "Conclave version")
    for each in kept:
        contents = each.manifest
        if contents is None:
            table.add_row(each.path.name, "cannot be read", "", "", "", "")
            continue
        archive = f"version {contents.archive.version}" if contents.archive else "none"
        archive += ", damaged" if contents.faults else ""
        table.add_row(
            each.path.name,
            second(contents.made_at),
            f"{contents.messages:,}",
            f"{contents.size:,}",
            archive,
            contents.product,
        )
    print_table(table, "no backups")
    for each in kept:
        if each.fault:
            click.echo(f"conclave: {visible(each.fault)}", err=True)


@click.command(short_help="Restore a backup to an empty location.")
@config_option
@click.option(
    "--accept-older-vault",
    "accepts_older",
    is_flag=True,
    help="Accept a vault that is damaged or older than the backup: messages without keys are lost, and deleted ones may"
    " return.",
)
@click.option("--damaged", is_flag=True, help="Restore although messages of its archive are damaged.")
@click.argument("backup", metavar="SRC", type=_folder)
def restore(path: Path | None, backup: Path, *, accepts_older: bool, damaged: bool) -> None:
    """Restore the backup SRC to the configured locations, which must be empty.

    The server must be stopped. The newest vault is needed, in its location or as a copy. What has expired since the
    backup is erased before anything is served; so is what was deleted since, according to the ledger in the vault.
    """
    clock = SystemClock()
    with exit_on_signals(), one_line_errors(ConfigError, BackupError, CleanupError):
        config = command_config(path)
        done = restoring.restore(
            config, clock, backup, lambda made: _erase(made, clock), accepts_older=accepts_older, damaged=damaged
        )
    manifest = done.manifest
    place, what = visible(str(config.database)), counted(manifest.messages, "message")
    click.echo(f"restored to {place}: {what}, as of {second(manifest.made_at)} UTC")
    counts = {kind.replace("_", " "): count for kind, count in sorted(done.replayed.items()) if kind != "alive"}
    if found := ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count):
        click.echo(f"ended or changed again: {found}")
    if done.ledger_until:
        click.echo(f"the ledger has changes until {second(done.ledger_until)} UTC")
    if done.ledger_flaw:
        click.echo(f"warning: {WITHOUT_LEDGER}", err=True)
    if done.locked:
        names = [*done.locked[:MAX_SHOWN], *([f"{more:,} more"] if (more := len(done.locked) - MAX_SHOWN) > 0 else [])]
        click.echo(f"note: passwords changed since the backup, set new ones for: {', '.join(names)}", err=True)
    for note in done.notes:
        click.echo(f"note: {visible(note)}", err=True)


def _erase(config: Config, clock: Clock) -> str:
    """Erase what is due from the restored database. The server later cleans up the archive."""
    with closing(RunEnvironment(config, clock, is_hot_only=True)) as engine:
        return run.clean_up(engine).error
