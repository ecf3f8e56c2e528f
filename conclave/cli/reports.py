"""Prints cleanup runs: a progress bar, the result, the history, and advice."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from conclave.cli.tables import FILE_WIDTH, counted, second, visible
from conclave.retention import rules
from conclave.retention.advice import Advice, elapsed_text, rounded_text
from conclave.retention.durations import duration_text
from conclave.store.views.runs import Run
from spark.report import Report
from spark.run import Progress

_MEANINGS = {
    rules.EXPIRED: ("messages", "older than the group's expiry"),
    rules.FETCHED: ("messages", "fetched by all members (delete-after-fetch)"),
    rules.REDACTED: ("messages", "self-destructed for all readers"),
    rules.TAKEN_BACK: ("messages", "taken back"),
    rules.DELETED_GROUP: ("messages", "group deleted"),
    rules.DELETED_ACCOUNT: ("messages", "sender's account deleted"),
    rules.SESSIONS: ("sessions", "expired"),
    rules.INVITES: ("invites", "expired (invite_ttl_seconds)"),
}


@contextmanager
def progress_bar(console: Console, *, is_wanted: bool = True) -> Iterator[Progress | None]:
    """Show a progress bar on a terminal. Otherwise yield None, and rows are not counted."""
    if not (console.is_terminal and is_wanted):
        yield None
        return
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task("deleting", total=None)
        yield lambda gone, total: bar.update(task, completed=gone, total=total)


def as_json(report: Report, *, dry: bool = False) -> dict[str, Any]:
    """Return a run for JSON, as in the log; with ``dry`` also the settings that differ from those in force."""
    found = report.to_mapping() | {"dry_run": dry}
    return found | {"differing": report.differing} if dry else found


def show(report: Report, console: Console, *, dry: bool = False) -> None:
    """Print what was deleted and why; with ``dry``, what would be deleted."""
    title = "Dry run, nothing was changed" if dry else "Cleanup run"
    table = Table("what", "why", title=f"{title} ({report.engine}): {report.outcome}")
    table.add_column("to delete" if dry else "deleted", justify="right")
    for rule in rules.REPORTED:
        table.add_row(*_MEANINGS[rule], f"{report.counts[rule]:,}")
    console.print(table)
    if report.differing:
        changed = ", ".join(report.differing)
        console.print(f"with the settings of this configuration, which change {changed}", soft_wrap=True)
    if dry:
        console.print(f"groups with messages due: {report.groups_touched:,}")
    else:
        touched = counted(report.groups_touched, "group")
        console.print(f"{touched} changed, {report.bytes_returned:,} bytes of disk space freed")
    if report.archived:
        console.print(f"{counted(report.archived, 'message')} {'would move' if dry else 'moved'} to the archive")
    if report.archive_bytes_returned:
        console.print(f"{report.archive_bytes_returned:,} bytes freed in the archive")
    if report.held:
        console.print(f"expired, but kept by legal holds: {counted(report.held, 'message')}")
    if report.error:
        console.print(f"error: {visible(report.error)}", style="red", soft_wrap=True, markup=False)


def show_history(runs: Iterable[Run], console: Console) -> None:
    """Print a line for each run, then the errors of failed runs."""
    table = Table(title="Cleanup runs, newest first", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))  # for 80 columns
    table.add_column("started (UTC)", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("deleted")
    table.add_column("freed", justify="right", no_wrap=True)
    table.add_column("job", overflow="fold")
    table.add_column("engine", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    failed = []
    for run in runs:
        table.add_row(
            second(run.started_at),
            f"{run.finished_at - run.started_at:,}s",
            _list(run.deleted) or "nothing",
            f"{run.bytes_returned:,} B",
            visible(run.job),
            run.engine,
            run.outcome,
        )
        if run.error:
            failed.append(f"{second(run.started_at)}: {run.error}")
    if not console.is_terminal:
        console.width = FILE_WIDTH
    console.print(table if table.row_count else "no runs yet")
    for line in failed:
        console.print(visible(line), soft_wrap=True, markup=False, highlight=False)


def show_advice(advice: Advice, console: Console) -> None:
    """Print a recommendation, the cost of a run, and estimates for other intervals."""
    if not console.is_terminal:
        console.width = FILE_WIDTH
    if advice.projections:
        table = Table(title=f"{advice.job}: estimated from {counted(advice.runs, 'run')}", box=SIMPLE_HEAD)
        table.add_column("interval", no_wrap=True)
        for name in ("longest delay", "messages due", "runs a day", "CPU a day", "write lock a day"):
            table.add_column(name, justify="right")
        for each in advice.projections:
            table.add_row(
                f"{duration_text(each.interval)}{' (now)' if each.is_current else ''}",
                rounded_text(each.max_delay),
                f"{each.waiting:,.0f}",
                f"{each.runs:,.1f}",
                elapsed_text(each.cpu),
                elapsed_text(each.lock),
            )
        console.print(table)
        console.print(f"a run: {', '.join(_costs(advice))}", highlight=False, soft_wrap=True)
    console.print(advice.sentence, highlight=False, soft_wrap=True, markup=False)


def _costs(advice: Advice) -> Iterator[str]:
    """Yield the costs of a run."""
    yield f"takes {elapsed_text(advice.seconds)}"
    yield f"{elapsed_text(advice.cpu)} of CPU time"
    yield f"write lock for {elapsed_text(advice.lock)}"
    yield f"at most {elapsed_text(advice.longest_lock)} at a time, which delays sends"


def _list(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
