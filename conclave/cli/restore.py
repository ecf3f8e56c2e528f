"""The ``conclave restore`` command."""

from contextlib import closing
from pathlib import Path

import click

from conclave.backup import restoring
from conclave.backup.manifest import BackupError
from conclave.cli.common import command_config, config_option, exit_on_signals, one_line_errors
from conclave.cli.tables import counted, second, visible
from conclave.clock import Clock, SystemClock
from conclave.config.load import ConfigError
from conclave.config.settings import Config
from spark import run
from spark.environment import CleanupError, RunEnvironment

MAX_SHOWN = 20
"""The most names that are printed."""

WITHOUT_LEDGER = (
    "the ledger is incomplete: groups deleted, members removed and passwords changed since the backup may be back"
)


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
@click.argument("backup", metavar="SRC", type=click.Path(path_type=Path, readable=False))
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
