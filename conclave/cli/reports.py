"""Prints what cleanup runs do and did: a bar, one run, or the history."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from conclave.cli.tables import WIDTH_OF_FILES, counted, second, visible
from conclave.retention import rules
from conclave.retention.advice import Advice, elapsed_text, rounded_text
from conclave.retention.durations import duration_text
from conclave.store.views.runs import Run
from spark.report import Report
from spark.run import Progress

_MEANINGS = {
    rules.EXPIRED: ("messages", "past their group's expiry"),
    rules.FETCHED: ("messages", "fetched by every member of a delete-after-fetch group"),
    rules.REDACTED: ("messages", "self-destructing, at their end for every reader"),
    rules.TAKEN_BACK: ("messages", "taken back by their senders or by admins"),
    rules.DELETED_GROUP: ("messages", "their group was deleted"),
    rules.DELETED_ACCOUNT: ("messages", "their sender's account was deleted"),
    rules.SESSIONS: ("sessions", "expired"),
    rules.INVITES: ("invites", "pending for longer than invite_ttl_seconds"),
}


@contextmanager
def progress_bar(console: Console, *, is_wanted: bool = True) -> Iterator[Progress | None]:
    """Show a bar on a terminal while rows are deleted. Elsewhere show nothing, and count nothing for it."""
    if not (console.is_terminal and is_wanted):
        yield None
        return
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task("deleting", total=None)
        yield lambda gone, total: bar.update(task, completed=gone, total=total)


def as_json(report: Report, *, dry: bool = False) -> dict[str, Any]:
    """Return a run as JSON has it: as the log does, and with ``dry`` which settings differ from those in force."""
    found = report.to_mapping() | {"dry_run": dry}
    return found | {"differing": report.differing} if dry else found


def show(report: Report, console: Console, *, dry: bool = False) -> None:
    """Print what went, and why; with ``dry``, what would go."""
    title = "Dry run, nothing was touched" if dry else "Cleanup run"
    table = Table(title=f"{title} ({report.engine}): {report.outcome}")
    table.add_column("what")
    table.add_column("why")
    table.add_column("would go" if dry else "deleted", justify="right")
    for rule in rules.REPORTED:
        table.add_row(*_MEANINGS[rule], f"{report.counts[rule]:,}")
    console.print(table)
    if report.differing:
        changed = ", ".join(report.differing)
        console.print(f"as after a start with this configuration, which changes {changed}", soft_wrap=True)
    if dry:
        console.print(f"groups that have something due: {report.groups_touched:,}")
    else:
        touched = counted(report.groups_touched, "group")
        console.print(f"{touched} touched, {report.bytes_returned:,} bytes returned to the disk")
    if report.archived:
        console.print(f"{counted(report.archived, 'message')} {'would move' if dry else 'moved'} to the archive")
    if report.archive_bytes_returned:
        console.print(f"{report.archive_bytes_returned:,} bytes returned by the archive")
    if report.held:
        console.print(f"kept by legal holds, although they have expired: {counted(report.held, 'message')}")
    if report.error:
        console.print(f"error: {visible(report.error)}", style="red", soft_wrap=True, markup=False)


def show_history(runs: Iterable[Run], console: Console) -> None:
    """Print one line for each run, and then the errors of those that failed."""
    table = Table(title="Cleanup runs, the newest first", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))  # for 80 columns
    table.add_column("began (UTC)", no_wrap=True)
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
        console.width = WIDTH_OF_FILES
    console.print(table if table.row_count else "no runs yet")
    for line in failed:
        console.print(visible(line), soft_wrap=True, markup=False, highlight=False)


def show_advice(advice: Advice, console: Console) -> None:
    """Print a sentence of advice, what a run costs, and what it would cost at other intervals."""
    if not console.is_terminal:
        console.width = WIDTH_OF_FILES
    if advice.projections:
        table = Table(title=f"{advice.job}: estimated from {counted(advice.runs, 'run')}", box=SIMPLE_HEAD)
        table.add_column("interval", no_wrap=True)
        for name in ("expired lies at most", "messages, on average", "runs a day", "CPU a day", "write lock a day"):
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
    """Yield what a run costs."""
    yield f"lasts {elapsed_text(advice.seconds)}"
    yield f"takes {elapsed_text(advice.cpu)} of CPU"
    yield f"holds the write lock for {elapsed_text(advice.lock)} in all"
    yield f"and for {elapsed_text(advice.longest_lock)} at the longest, which a send may have had to wait"


def _list(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
