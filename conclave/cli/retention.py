"""The ``conclave explain`` command: when and why a group's messages are hidden and erased."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from conclave.actions import explain as actions
from conclave.actions.explain import SettingsError
from conclave.archive import queries
from conclave.cli.common import NUMBER, TextParam, config_option
from conclave.cli.open_store import open_store
from conclave.cli.tables import counted, second, visible
from conclave.retention.durations import duration_text, duration_words
from conclave.retention.fate import Timer
from conclave.retention.policy import AFTER_FETCH, KEEP
from conclave.store.views.explain import ExplainedMessage, ExplainedWithdrawal, Explanation, LaggingMember

_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))

_PLACES = {
    "hot": "in the database",
    "moving": "in the database, moving to the archive",
    "copied": "in the archive, with a copy in the database until the next run",
    "archived": "in the archive",
}

_RULES = {
    "expired": "it has expired",
    "fetched": "all members have fetched it",
    "redacted": "it has self-destructed for all readers",
    "taken_back": "it was taken back",
    "deleted_group": "its group was deleted",
    "deleted_account": "its sender's account was deleted",
}

_PAST_RULES = _RULES | {
    "expired": "it had expired, or was sent before a purge",
}
"""For erased messages; a receipt has only the rule."""


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object; times in Unix seconds.")
@click.argument("group", metavar="GROUP", type=TextParam())
@click.argument("number", metavar="[SEQ]", required=False, type=NUMBER)
def explain(path: Path | None, group: str, number: int | None, *, as_json: bool) -> None:
    """Explain when and why a group's messages are hidden and erased.

    GROUP is a name or an id; use the id for a deleted group. SEQ is the number of a message. The answer holds for the
    next run unless something changes before. Nothing is modified.
    """
    with open_store(path, SettingsError) as outside:
        config, clock = outside.config, outside.context().clock
        found = outside.read(actions.explain, config, clock, group, number, partial(queries.find, config))
    if as_json:
        values = asdict(found)
        if values["message"] and (fate := values["message"]["fate"]):
            fate["goes"] = fate.pop("is_next")
        click.echo(json.dumps(values, default=_id))
        return
    for line in (*_group_lines(found), *(_message_lines(found, found.message) if found.message else ())):
        click.echo(line)


def _id(value: Any) -> str:
    """Format an id or a hash for JSON."""
    return str(UUID(bytes=value)) if len(value) == 16 else value.hex()


def _group_lines(found: Explanation) -> Iterator[str]:
    yield f"group {found.name or '(deleted)'}, {found.group_id}"
    if found.deleted_at is not None:
        yield (f"Deleted {_at(found.deleted_at, found.now)}. All messages are hidden, and the next run erases them.")
    yield f"Policy: {_policy(found)} Source: {found.source}."
    for reason in found.reasons:
        yield f"- {reason}"
    yield f"In force since: {_since(found)}"
    if found.min_lifetime:
        least = duration_words(found.min_lifetime)
        yield f"Messages are not erased until {least} after sending, even if hidden (min_lifetime)."
    yield from _marks(found)
    yield from _withheld(found)
    yield from _waiting(found)
    yield f"Runs: {_runs(found)}"
    if found.overdue_since is not None:
        yield f"Overdue: messages could have been erased for {_words(found.now - found.overdue_since)}."
    elif found.erases:
        yield "Overdue: nothing."


def _policy(found: Explanation) -> str:
    if found.lifetime == KEEP:
        return "messages are kept until their group or account is deleted."
    if found.lifetime == AFTER_FETCH:
        return "messages are deleted once all members have fetched them (delete-after-fetch)."
    return f"messages expire {duration_words(found.lifetime)} after sending."


def _since(found: Explanation) -> str:
    if found.decided is None:
        return "unknown; the audit log has no entry."
    return f"{_at(found.decided.at, found.now)}, {found.decided.action} by {visible(found.decided.actor)}."


def _marks(found: Explanation) -> Iterator[str]:
    if found.deleted_at is not None:
        return
    marks = found.marks
    lines = [f"the last number is {marks.last_seq}"]
    if marks.floor_seq:
        lines.append(f"all members have fetched up to {marks.floor_seq}")
    if marks.gone_below:
        lines.append(f"messages up to {marks.gone_below} are never served again")
    if marks.expired_before:
        lines.append(f"messages from before {second(marks.expired_before)} UTC are never served again")
    if marks.archived_seq:
        lines.append(f"messages up to {marks.archived_seq} are served from the archive")
    yield f"Marks: {'; '.join(lines)}."


def _withheld(found: Explanation) -> Iterator[str]:
    if found.clock_fault:
        yield f"The clock is not trusted: {found.clock_fault}. Nothing is erased until you accept it."
    if not found.erases:
        yield "Nothing is erased on this server: retention.enabled is false."
    if not found.holds_in_all:
        yield "Legal holds: none."
    for hold in found.holds:
        of = "all messages of the group" if hold.covers == "group" else f"messages from {visible(hold.name)}"
        unsure = "; unknown whether there are any here" if hold.covers == "user" and not hold.has_sent else ""
        added = f"added {_at(hold.added_at, found.now)} by {visible(hold.added_by)}"
        yield f"Legal hold {hold.hold_id} keeps {of}: {visible(hold.reason)} ({added}{unsure})"
    if more := found.holds_in_all - len(found.holds):
        yield f"and {more:,} more"


def _waiting(found: Explanation) -> Iterator[str]:
    what = "messages" if found.lifetime == AFTER_FETCH else "commits"
    if found.waiting_in_all:
        yield f"Deletion of {what} waits for members who have not fetched up to {found.marks.last_seq}:"
    for member in found.waiting:
        used = "never, or its session has ended" if member.last_used_at is None else _at(member.last_used_at, found.now)
        fetched = f"has fetched up to {member.fetched}" if member.fetched else "has fetched nothing"
        disabled = "; the account is disabled" if member.disabled else ""
        yield f"- {member.username} {fetched}; last used the server: {used}{disabled}"
    if more := found.waiting_in_all - len(found.waiting):
        yield f"and {more:,} more"


def _runs(found: Explanation) -> str:
    listed = ", ".join(f"{job.name} every {duration_text(job.interval)}" for job in found.jobs)
    if not found.jobs:
        listed = "no purge job covers this lifetime; only `conclave cleanup run` erases messages that expire here"
    return f"{listed}. Any run erases messages behind a mark."


def _message_lines(found: Explanation, message: ExplainedMessage) -> Iterator[str]:
    name = f"Message {message.sequence_num}"
    if message.place == "not sent yet":
        yield f"{name}: not sent yet; the last number is {found.marks.last_seq}."
        return
    if message.place == "gone":
        yield from _gone_lines(name, message, found.now)
        return
    yield f"{name}: {_PLACES[message.place]}{_part(message)}."
    if message.unreadable:
        yield f"Its time cannot be read: {message.unreadable}"
    if message.sent is None or message.fate is None:
        return
    what = "It is a commit, sent" if message.sent.is_commit else "Sent"
    sender = f"{message.sender or 'a deleted account'} ({_id(message.sent.sender_id)})"
    yield f"{what} at {_at(message.sent.created_at, found.now)} by {sender}."
    yield from _timer(message.fate.timer, found.now)
    yield from _taken_back(message.taken_back, found.now)
    yield _hidden(found, message)
    yield _erasure(found, message)
    if message.waiting:
        yield f"Not fetched yet by: {_names(message.waiting, message.waiting_in_all)}."
    if message.unread and message.fate.timer:
        yield f"Not read yet by: {_names(message.unread, message.fate.timer.unread)}."


def _names(listed: Sequence[LaggingMember], in_all: int) -> str:
    more = in_all - len(listed)
    return f"{', '.join(member.username for member in listed)}{f', and {more:,} more' if more else ''}"


def _gone_lines(name: str, message: ExplainedMessage, now: int) -> Iterator[str]:
    if not message.receipts:
        yield (
            f"{name}: gone, without a receipt: the number was never used, a run is writing the receipt now, or the"
            " receipt is older than retention.keep_receipts."
        )
        return
    yield f"{name}: gone, by one of these receipts (which have only the highest number):"
    for each in message.receipts:
        reason = _PAST_RULES.get(each.rule, each.rule)
        went = f"{counted(each.messages, 'message')} up to {each.last_seq}, {each.rule}: {reason}"
        yield f"- receipt {each.receipt_id} of {_at(each.at, now)}, job {each.job}: {went}"


def _part(message: ExplainedMessage) -> str:
    if message.part is None:
        return ""
    lifetime, span, oldest, newest = message.part
    return f" (partition lifetime={lifetime}, span={span}; messages of {second(oldest)} to {second(newest)} UTC)"


def _timer(timer: Timer | None, now: int) -> Iterator[str]:
    if timer is None:
        return
    unread = f"{timer.unread:,} of them {'has' if timer.unread == 1 else 'have'} not read it"
    following = f"; the next timer ends {_at(timer.next_end, now)}" if timer.next_end else ""
    yield (
        f"It self-destructs {duration_words(timer.seconds)} after reading, for each reader separately. Readers (members"
        f" when it was sent who still are): {timer.readers:,}; {unread}; for {timer.redacted:,} it is"
        f" redacted{following}."
    )


def _taken_back(taking: ExplainedWithdrawal | None, now: int) -> Iterator[str]:
    if taking is None:
        return
    if taking.is_own is None:
        restored = _at(taking.at, now)
        yield f"It was taken back before a backup was restored, {restored}; by whom is unknown."
        return
    who = "its sender" if taking.is_own else "an admin of the group"
    yield f"It was taken back by {who}, {taking.by or 'a deleted account'}, {_at(taking.at, now)}."


def _hidden(found: Explanation, message: ExplainedMessage) -> str:
    fate, now = message.fate, found.now
    assert fate  # noqa: S101 - for mypy
    if fate.is_hidden:
        by = _RULES[fate.rule]
        if fate.by_mark and fate.rule == "expired":
            by = "it was sent before a mark of an earlier policy or a purge"
        at = f", since {_at(fate.hidden_at, now)}" if fate.hidden_at and fate.hidden_at <= now else ""
        return f"Hidden: already, {by}{at}."
    if fate.rule == "fetched":
        return "Hidden: by the next run; all members have fetched it. Until then it may be served again."
    if fate.is_kept_commit:
        return "Hidden: not before all members have fetched it (retain_commits)."
    if fate.hidden_at and fate.rule == "redacted":
        unread = ", even if members have not read it by then" if fate.timer and fate.timer.unread else ""
        return f"Hidden: for all from {_at(fate.hidden_at, now)}{unread}."
    if fate.hidden_at:
        first = ", or by the first run after all members have fetched it" if fate.waits_for_members else ""
        return f"Hidden: from {_at(fate.hidden_at, now)}{first}."
    if fate.waits_for_members:
        return "Hidden: by the first run after all members have fetched it; it has no time limit."
    return "Hidden: never, by the current policy."


def _erasure(found: Explanation, message: ExplainedMessage) -> str:
    fate, now = message.fate, found.now
    assert fate  # noqa: S101 - for mypy
    withheld = []
    if not found.erases:
        withheld.append("retention.enabled is false")
    if fate.holds:
        withheld.append(f"legal hold {', '.join(map(str, fate.holds))}")
    if fate.withheld_until > now:
        withheld.append(f"min_lifetime, until {_at(fate.withheld_until, now)}")
    if found.clock_fault:
        withheld.append("the clock guard")
    kept = f" Withheld by: {'; '.join(withheld)}." if withheld else ""
    jobs = " or ".join(job.name for job in found.jobs)
    run = "of any job" if fate.by_mark else jobs or "`conclave cleanup run` only: no purge job covers this lifetime"
    if fate.is_next:
        return f"Erased: by the next run ({run}).{kept}"
    if fate.erasable_at is not None and fate.erasable_at <= now:
        return f"Erased: by the first run ({run}) once it is no longer withheld.{kept}"
    if fate.erasable_at is not None:
        return f"Erased: by the first run ({run}) from {_at(fate.erasable_at, now)}.{kept}"
    if fate.waits_for_members:
        return f"Erased: by the first run ({run}) after all members have fetched it.{kept}"
    return f"Erased: never, by the current policy.{kept}"


def _at(seconds: int, now: int) -> str:
    """Format a time in UTC, with its distance from now."""
    far = seconds - now
    if not far:
        return f"{second(seconds)} UTC (now)"
    return f"{second(seconds)} UTC ({f'in {_words(far)}' if far > 0 else f'{_words(-far)} ago'})"


def _words(seconds: int) -> str:
    """Format a duration in its largest whole unit, rounded down."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), (1, "second"))
    return counted(seconds // size, unit)
