"""The ``conclave backup`` commands."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from conclave.backup import checking, manifest, vault
from conclave.backup.destination import Kept, kept_in
from conclave.backup.making import Made, make as make_backup
from conclave.backup.manifest import BackupError, Manifest
from conclave.cli.common import config_option, configured, one_line_errors, orderly_end
from conclave.cli.tables import counted, print_whole, second, visible
from conclave.clock import SystemClock
from conclave.config.load import ConfigError
from conclave.logs.setup import get_logger

NICENESS = 10
"""A backup has a lower priority than the server, as Java has."""

log = get_logger(__name__)

_folder = click.Path(path_type=Path, readable=False)  # reading it tells more


class _Backup(click.Group):
    """A group whose first argument is a command, or else the folder of a backup to be made."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take what names no command for the arguments of ``make``."""
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = ["make", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_Backup,
    short_help="Make a backup, and see and check those that are there.",
    subcommand_metavar="[--keep N] [--vault-copy PATH] DEST | COMMAND [ARGS]...",
)
def backup() -> None:
    """Make a backup in the folder DEST, or see and check the backups that are there.

    With --keep N, the oldest complete ones are then removed until N are left. --vault-copy PATH renews a copy of the
    vault in the folder PATH, which must not lie in DEST: a backup never has the keys of its messages. --config PATH
    names the TOML file, as for other commands. A folder whose name is that of a command is written as ./list.
    """


@backup.command(hidden=True)
@config_option
@click.option("--keep", type=click.IntRange(min=1), help="Then remove the oldest, until N are left.", metavar="N")
@click.option("--vault-copy", type=_folder, help="Also renew a copy of the vault in this folder.", metavar="PATH")
@click.argument("dest", type=_folder)
def make(path: Path | None, keep: int | None, vault_copy: Path | None, dest: Path) -> None:
    """Make a backup in the folder DEST, while the server runs or not. Exit status 1 if anything was found damaged."""
    os.nice(NICENESS)
    with orderly_end(), one_line_errors(ConfigError, BackupError):
        config = configured(path)
        if vault_copy and vault_copy.resolve().is_relative_to(dest.resolve()):
            raise BackupError(f"--vault-copy: {vault_copy} lies in {dest}: whoever has the backups would have the keys")
        done = make_backup(config, SystemClock(), dest, keep, lambda: log.info("waiting_for_another_run"))
        if vault_copy:
            vault.copy(config, vault_copy)
    click.echo(f"{visible(str(done.path))}: {counted(done.manifest.messages, 'message')}, {done.manifest.size:,} bytes")
    if done.manifest.archive:
        click.echo(f"of the archive {done.copied_bytes:,} bytes were copied, {done.shared_bytes:,} are shared")
    if vault_copy:
        click.echo(f"the vault was copied to {visible(str(vault_copy))}")
    elif not config.vault.copies:
        click.echo(
            f"note: the backup cannot be read without {visible(str(config.vault_path))}, of which there is no copy: set"
            " vault.copies, or give --vault-copy",
            err=True,
        )
    click.echo(f"cleanup had to wait for {done.locked_seconds:.1f} s")
    for name in done.removed:
        click.echo(f"removed: {visible(name)}")
    _warn_of_damage(done)


def _warn_of_damage(done: Made) -> None:
    """Say what of the archive was found damaged, here or elsewhere, and end with status 1 if anything was."""
    faults = done.manifest.faults
    for note in done.notes:
        click.echo(f"conclave: {visible(note)}", err=True)
    for name, fault in sorted(faults.items()):
        click.echo(f"conclave: {visible(str(done.path / name))}: {fault}; no backup here has it whole", err=True)
    if faults or done.notes:
        found = "the backup is marked as damaged, and --keep does not count it" if faults else "the backup is whole"
        click.echo(f"conclave: {found}: see docs/operations/backup.md#a-damaged-archive", err=True)
        sys.exit(1)


@backup.command("list")
@click.argument("dest", type=_folder)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; times in Unix seconds.")
def list_backups(dest: Path, *, as_json: bool) -> None:
    """Print the backups in the folder DEST, the oldest first. Only their manifests are read."""
    with one_line_errors(BackupError):
        kept = list(kept_in(dest))
    if as_json:
        for each in kept:
            click.echo(json.dumps({"path": str(each.path), "fault": each.fault} | _as_json(each.manifest)))
    else:
        _print(kept)
    if any(each.fault for each in kept):
        sys.exit(1)


@backup.command()
@click.argument("src", type=_folder)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def verify(src: Path, *, as_json: bool) -> None:
    """Read all of the backup SRC, and print what is not as it was. Exit status 1 if anything is."""
    with one_line_errors(BackupError):
        told = manifest.read(src)
        faults = [fault.text for fault in checking.faults_of(src, told)]
    if as_json:
        click.echo(json.dumps({"path": str(src), "faults": faults} | _as_json(told)))
    else:
        for fault in faults:
            click.echo(visible(fault))
    if faults:
        click.echo(f"conclave: the backup is not as it was: {counted(len(faults), 'fault')}", err=True)
        sys.exit(1)
    if not as_json:
        click.echo(f"the backup is whole: {counted(len(told.files), 'file')}, {told.size:,} bytes")


def _as_json(told: Manifest | None) -> dict[str, object]:
    """Return what is told of a manifest in JSON: all but its files, which are very many."""
    if told is None:
        return {}
    archive = asdict(told.archive) if told.archive else None
    return {
        "product": told.product,
        "schema": told.schema,
        "number": told.number,
        "made_at": told.made_at,
        "messages": told.messages,
        "bytes": told.size,
        "files": len(told.files),
        "archive": archive,
        "damaged": [f"{name}: {fault}" for name, fault in sorted(told.faults.items())],
    }


def _print(kept: list[Kept]) -> None:
    table = Table("backup", "made (UTC)", "messages", "bytes", "archive", "by Conclave")
    for each in kept:
        told = each.manifest
        if told is None:
            table.add_row(each.path.name, "cannot be read", "", "", "", "")
            continue
        archive = f"version {told.archive.version}" if told.archive else "none"
        archive += ", damaged" if told.faults else ""
        table.add_row(
            each.path.name, second(told.made_at), f"{told.messages:,}", f"{told.size:,}", archive, told.product
        )
    print_whole(table, "there are no backups yet")
    for each in kept:
        if each.fault:
            click.echo(f"conclave: {visible(each.fault)}", err=True)
