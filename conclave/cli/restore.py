"""The ``conclave restore`` command."""

from contextlib import closing
from pathlib import Path

import click

from conclave.backup import restoring
from conclave.backup.manifest import BackupError
from conclave.cli.common import config_option, configured, one_line_errors, orderly_end
from conclave.cli.tables import counted, second, visible
from conclave.clock import Clock, SystemClock
from conclave.config.load import ConfigError
from conclave.config.settings import Config
from spark import run
from spark.environment import CleanupError, RunEnvironment

SHOWN = 20
"""At most 20 names are printed."""

WITHOUT_LEDGER = (
    "what the ledger does not tell is back as it was: groups that were deleted since, members who were removed,"
    " passwords that were changed"
)


@click.command(short_help="Restore a backup, where nothing is yet.")
@config_option
@click.option(
    "--accept-older-vault",
    "accepts_older",
    is_flag=True,
    help="Restore with a vault that is older than the backup, or damaged: messages without keys are lost, and what was"
    " deleted since may come back.",
)
@click.option("--damaged", is_flag=True, help="Restore although some messages of its archive are damaged.")
@click.argument("backup", metavar="SRC", type=click.Path(path_type=Path, readable=False))
def restore(path: Path | None, backup: Path, *, accepts_older: bool, damaged: bool) -> None:
    """Restore the backup SRC to the configured places, where nothing may be yet.

    The server has to be stopped. The newest vault is needed, in its place or in one of its copies. What has expired
    since the backup was made is erased before anything is served, and the ledger in the vault tells what else must not
    come back.
    """
    clock = SystemClock()
    with orderly_end(), one_line_errors(ConfigError, BackupError, CleanupError):
        config = configured(path)
        done = restoring.restore(
            config, clock, backup, lambda made: _erase(made, clock), accepts_older=accepts_older, damaged=damaged
        )
    told = done.manifest
    place, what = visible(str(config.database)), counted(told.messages, "message")
    click.echo(f"restored to {place}: {what} of {second(told.made_at)} UTC")
    if found := ", ".join(f"{count:,} {kind}" for kind, count in sorted(done.taken_back.items()) if count):
        click.echo(f"taken back: {found}")
    if done.told_until:
        click.echo(f"the ledger told of changes until {second(done.told_until)} UTC")
    if done.ledger_flaw:
        click.echo(f"warning: {WITHOUT_LEDGER}", err=True)
    if done.locked:
        names = [*done.locked[:SHOWN], *([f"{more:,} more"] if (more := len(done.locked) - SHOWN) > 0 else [])]
        click.echo(f"note: passwords were changed since: set new ones for {', '.join(names)}", err=True)
    for note in done.notes:
        click.echo(f"note: {visible(note)}", err=True)


def _erase(config: Config, clock: Clock) -> str:
    """Erase what is due from the restored database. The archive's part of a run needs Spark, and the server has it."""
    with closing(RunEnvironment(config, clock, is_hot_only=True)) as engine:
        return run.clean_up(engine).error
