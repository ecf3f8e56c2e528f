"""The ``conclave verify-erasure`` command."""

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from conclave.actions.command_runner import CommandRunner, CommandRunnerError
from conclave.backup.destination import backups_in
from conclave.backup.manifest import BackupError
from conclave.cli.common import (
    CliError,
    command_config,
    config_option,
    exit_on_signals,
    one_line_errors,
    require_owner,
)
from conclave.cli.tables import counted, visible
from conclave.clock import Clock, SystemClock
from conclave.config.load import ConfigError
from conclave.config.settings import Config
from conclave.logs.setup import get_logger
from conclave.proof.experiment import Experiment, ExperimentError
from conclave.proof.findings import ProofFinding, ProofPart
from conclave.proof.keys import BackupFolder, ProofError, verify
from spark import run
from spark.environment import CleanupError, RunEnvironment

MAX_SHOWN = 20
"""The most findings of a part that are printed; ``--json`` has up to 1,000."""

_EXPECTED = (CliError, ConfigError, ProofError, ExperimentError, CommandRunnerError, CleanupError, BackupError)

log = get_logger(__name__)


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--read-only", is_flag=True, help="Skip the experiment, which sends messages and runs cleanup twice.")
@click.option(
    "--copies",
    metavar="DEST",
    type=click.Path(path_type=Path, readable=False),
    help="Also verify the backups in DEST: they must not contain keys of erased messages.",
)
def verify_erasure(path: Path | None, copies: Path | None, *, as_json: bool, read_only: bool) -> None:
    """Verify that erased messages cannot be decrypted.

    It checks all key files, and runs an experiment with messages of its own. Exit status 1 if anything is found.
    Neither messages nor keys are printed, only where a key was found.
    """
    with exit_on_signals(), one_line_errors(*_EXPECTED):
        config, clock = command_config(path), SystemClock()
        if not read_only:
            require_owner(config)
        kept = None
        if copies:
            _backups_in(copies)  # fails early if there are none
            kept = BackupFolder(copies, partial(_backups_in, copies))
        parts = verify(config, lambda: log.info("waiting_for_another_run"), kept)
        if not read_only:
            parts.append(_experiment(config, clock))
    found = sum(len(part.findings) + part.more for part in parts)
    if as_json:
        click.echo(json.dumps({"verdict": _verdict(parts), "parts": [asdict(part) for part in parts]}))
    else:
        for part in parts:
            _show(part)
    if found:
        click.echo(f"conclave: {counted(found, 'finding')}: see docs/retention.md#proof", err=True)
        sys.exit(1)


def _backups_in(folder: Path) -> list[Path]:
    """Return the backups in a folder. Raises BackupError if there are none."""
    found = [each.path for each in backups_in(folder)]
    if not found:
        raise BackupError(f"{folder}: no backups found; is the disk mounted?")
    return found


def _experiment(config: Config, clock: Clock) -> ProofPart:
    with closing(RunEnvironment(config, clock)) as engine:
        return Experiment(
            config, CommandRunner(config, clock, with_keys=True), lambda: run.clean_up(engine).error
        ).run()


def _verdict(parts: Sequence[ProofPart]) -> str:
    if any(part.findings for part in parts):
        return "findings"
    return "kept" if any(part.kept for part in parts) else "clean"


def _show(part: ProofPart) -> None:
    amounts = ", ".join(f"{amount:,} {what}" for what, amount in part.looked_at.items())
    click.echo(f"{part.name}: {_verdict([part])}; {amounts or 'nothing was there'}")
    for line in (*part.notes, *(f"kept: {line}" for line in part.kept)):
        click.echo(f"  {visible(line)}")
    for finding in part.findings[:MAX_SHOWN]:
        click.echo(f"  {visible(_place(finding))}: {finding.told} ({finding.kind})")
    if more := len(part.findings[MAX_SHOWN:]) + part.more:
        click.echo(f"  and {more:,} more")


def _place(finding: ProofFinding) -> str:
    return finding.path if finding.offset is None else f"{finding.path}, byte {finding.offset}"
