"""The ``conclave explain`` command: in words, what becomes of a group's messages."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from conclave.actions import explain as actions
from conclave.actions.explain import (
    ExplainedMessage,
    ExplainedWithdrawal,
    Explanation,
    LaggingMember,
    SettingsError,
    Timer,
)
from conclave.archive import lookup
from conclave.cli.common import NUMBER, Name, config_option
from conclave.cli.opened_store import opened_store
from conclave.cli.tables import counted, second, visible
from conclave.config.settings import Config
from conclave.retention.durations import duration_text, duration_words
from conclave.retention.policy import AFTER_FETCH, KEEP
from conclave.store.archive import moves
from conclave.store.archive.moves import ArchiveState
from conclave.store.engine import sqlite

_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))

_PLACES = {
    "hot": "in the database",
    "moving": "in the database, on its way to the archive",
    "copied": "in the archive, and a copy is in the database until the next run",
    "archived": "in the archive",
}

_RULES = {
    "expired": "it is older than its group's messages live",
    "fetched": "every member has fetched it",
    "redacted": "it has destroyed itself for every reader",
    "taken_back": "it was taken back",
    "deleted_group": "its group was deleted",
    "deleted_account": "its sender's account was deleted",
}

_WENT = _RULES | {
    "expired": "it was older than its group's messages lived then, or from before a purge",
}
"""Of what is gone, a receipt has only the rule."""


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object; times in Unix seconds.")
@click.argument("group", metavar="GROUP", type=Name())
@click.argument("number", metavar="[SEQ]", required=False, type=NUMBER)
def explain(path: Path | None, group: str, number: int | None, *, as_json: bool) -> None:
    """Explain what becomes of a group's messages, and why.

    GROUP is a name or an id; use the id for a deleted group. SEQ is the number of one message. Nothing is
    changed. What it says is what the next run does, unless something changes before.
    """
    with opened_store(path, SettingsError) as outside:
        config, clock = outside.config, outside.context().clock
        look = partial(lookup.find, config.archive_path, partial(archive_state, config))
        found = outside.read(actions.explain, config, clock, group, number, look)
    if as_json:
        click.echo(json.dumps(asdict(found), default=_id))
        return
    for line in (*_of_group(found), *(_of_message(found, found.message) if found.message else ())):
        click.echo(line)


def archive_state(config: Config) -> ArchiveState:
    """Return what the database knows of the archive's table. Raises OSError or StoreError."""
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        state = moves.find_state(connection)
    if state is None:
        raise OSError(f"{config.database}: knows of no archive")
    return state


def _id(value: Any) -> str:
    """Write an id, or a hash, for JSON."""
    return str(UUID(bytes=value)) if len(value) == 16 else value.hex()


def _of_group(found: Explanation) -> Iterator[str]:
    yield f"group {found.name or '(deleted)'}, {found.group_id}"
    if found.deleted_at is not None:
        yield f"It was deleted {_at(found.deleted_at, found.now)}. All of it is hidden, and any run erases what it may."
    yield f"Policy: {_policy(found)} Source: {found.source}."
    for reason in found.reasons:
        yield f"- {reason}"
    yield f"In force since: {_since(found)}"
    if found.min_lifetime:
        least = duration_words(found.min_lifetime)
        yield f"Nothing is erased until {least} after it was sent (min_lifetime), even if it is hidden."
    yield from _marks(found)
    yield from _withheld(found)
    yield from _waiting(found)
    yield f"Runs: {_runs(found)}"
    if found.overdue_since is not None:
        yield f"Overdue: something here could have been erased for {_words(found.now - found.overdue_since)}."
    elif found.erases:
        yield "Overdue: nothing."


def _policy(found: Explanation) -> str:
    if found.lifetime == KEEP:
        return "messages are kept until their group or account is deleted; nothing here expires."
    if found.lifetime == AFTER_FETCH:
        return "a message goes once every member has fetched it (delete-after-fetch)."
    return f"a message expires {duration_words(found.lifetime)} after it was sent."


def _since(found: Explanation) -> str:
    if found.decided is None:
        return "unknown; the audit log has no change of it."
    return f"{_at(found.decided.at, found.now)}, {found.decided.action} by {visible(found.decided.actor)}."


def _marks(found: Explanation) -> Iterator[str]:
    if found.deleted_at is not None:
        return
    marks = found.marks
    told = [f"the last number is {marks.last_seq}"]
    if marks.floor_seq:
        told.append(f"all members had fetched up to {marks.floor_seq}")
    if marks.gone_below:
        told.append(f"nothing up to {marks.gone_below} is served again")
    if marks.expired_before:
        told.append(f"nothing sent before {second(marks.expired_before)} UTC is served again")
    if marks.archived_seq:
        told.append(f"messages up to {marks.archived_seq} are served from the archive")
    yield f"Marks: {'; '.join(told)}."


def _withheld(found: Explanation) -> Iterator[str]:
    if found.clock_fault:
        yield f"The clock guard is red: {found.clock_fault}. Nothing is erased until you accept the clock."
    if not found.erases:
        yield "Nothing is erased on this server: retention.enabled is false."
    if not found.holds_in_all:
        yield "Legal holds: none."
    for hold in found.holds:
        of = "all messages of the group" if hold.covers == "group" else f"what {visible(hold.name)} has sent"
        unsure = "; whether there is anything here, is not known" if hold.covers == "user" and not hold.has_sent else ""
        added = f"added {_at(hold.added_at, found.now)} by {visible(hold.added_by)}"
        yield f"Legal hold {hold.hold_id} keeps {of}: {visible(hold.reason)} ({added}{unsure})"
    if more := found.holds_in_all - len(found.holds):
        yield f"and {more:,} more"


def _waiting(found: Explanation) -> Iterator[str]:
    what = "messages" if found.lifetime == AFTER_FETCH else "commits"
    if found.waiting_in_all:
        yield f"Members who hold {what} back, since they have not fetched up to {found.marks.last_seq}:"
    for member in found.waiting:
        used = "never, or its session is over" if member.last_used_at is None else _at(member.last_used_at, found.now)
        fetched = f"has fetched up to {member.fetched}" if member.fetched else "has fetched nothing"
        disabled = "; the account is disabled" if member.disabled else ""
        yield f"- {member.username} {fetched} (when, is not stored); last used the server: {used}{disabled}"
    if more := found.waiting_in_all - len(found.waiting):
        yield f"and {more:,} more"


def _runs(found: Explanation) -> str:
    listed = ", ".join(f"{job.name} every {duration_text(job.interval)}" for job in found.jobs)
    if not found.jobs:
        listed = (
            "no purge job covers this lifetime; only `conclave cleanup run`, started by you, erases what expires here"
        )
    return f"{listed}. Any run erases what is past a mark."


def _of_message(found: Explanation, message: ExplainedMessage) -> Iterator[str]:
    name = f"Message {message.sequence_num}"
    if message.place == "not sent yet":
        yield f"{name}: not sent yet; the last number is {found.marks.last_seq}."
        return
    if message.place == "gone":
        yield from _gone(name, message, found.now)
        return
    yield f"{name}: {_PLACES[message.place]}{_part(message)}."
    if message.unreadable:
        yield f"Its time cannot be told: {message.unreadable}"
    if message.sent is None or message.fate is None:
        return
    what = "It is a commit, sent" if message.sent.is_commit else "Sent"
    sender = f"{message.sender or 'a deleted account'} ({_id(message.sent.sender_id)})"
    yield f"{what} at {_at(message.sent.created_at, found.now)} by {sender}."
    yield from _timer(message.fate.timer, found.now)
    yield from _taken_back(message.taken_back, found.now)
    yield _hidden(found, message)
    yield _goes(found, message)
    if message.waiting:
        yield f"Not fetched yet by: {_names(message.waiting, message.waiting_in_all)}."
    if message.unread and message.fate.timer:
        yield f"Not read yet by: {_names(message.unread, message.fate.timer.unread)}."


def _names(listed: Sequence[LaggingMember], in_all: int) -> str:
    more = in_all - len(listed)
    return f"{', '.join(member.username for member in listed)}{f', and {more:,} more' if more else ''}"


def _gone(name: str, message: ExplainedMessage, now: int) -> Iterator[str]:
    if not message.receipts:
        yield (
            f"{name}: gone. No receipt tells of it: there never was such a number, a run is writing it just now, or it"
            " is older than retention.keep_receipts."
        )
        return
    yield f"{name}: gone, by one of these receipts (each has only the greatest number that went):"
    for each in message.receipts:
        reason = _WENT.get(each.rule, each.rule)
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
        f"It destroys itself {duration_words(timer.seconds)} after it was read, for each reader alone. Readers,"
        f" who were members when it was sent and still are: {timer.readers:,}; {unread}, and for {timer.redacted:,}"
        f" it is redacted{following}."
    )


def _taken_back(taking: ExplainedWithdrawal | None, now: int) -> Iterator[str]:
    if taking is None:
        return
    if taking.is_own is None:
        restored = _at(taking.at, now)
        yield f"It was taken back before a backup was restored, {restored}; who did so is not known here any more."
        return
    who = "its sender" if taking.is_own else "an admin of the group"
    yield f"It was taken back by {who}, {taking.by or 'a deleted account'}, {_at(taking.at, now)}."


def _hidden(found: Explanation, message: ExplainedMessage) -> str:
    fate, now = message.fate, found.now
    assert fate  # noqa: S101 - for mypy: the caller has looked
    if fate.is_hidden:
        by = _RULES[fate.rule]
        if fate.by_mark and fate.rule == "expired":
            by = "it was sent before a mark, which an earlier policy or a purge has left"
        at = f", since {_at(fate.hidden_at, now)}" if fate.hidden_at and fate.hidden_at <= now else ""
        return f"Hidden: already, {by}{at}."
    if fate.rule == "fetched":
        return "Hidden: by the next run; every member has fetched it. Until then it may be served again."
    if fate.is_kept_commit:
        return "Hidden: not by its age, before every member has fetched it (retain_commits)."
    if fate.hidden_at and fate.rule == "redacted":
        unread = ", even if members have not read it by then" if fate.timer and fate.timer.unread else ""
        return f"Hidden: from everybody from {_at(fate.hidden_at, now)} on{unread}."
    if fate.hidden_at:
        first = ", or by the first run after every member has fetched it" if fate.waits_for_members else ""
        return f"Hidden: from {_at(fate.hidden_at, now)} on{first}."
    if fate.waits_for_members:
        return "Hidden: by the first run after every member has fetched it; no time ends it before."
    return "Hidden: never, by the policy as it is."


def _goes(found: Explanation, message: ExplainedMessage) -> str:
    fate, now = message.fate, found.now
    assert fate  # noqa: S101 - for mypy: the caller has looked
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
    run = "of any job" if fate.by_mark else jobs or "only one that you start: no purge job covers this lifetime"
    if fate.is_next:
        return f"Erased: by the next run ({run}).{kept}"
    if fate.erasable_at is not None and fate.erasable_at <= now:
        return f"Erased: by the first run ({run}) once nothing withholds it any more.{kept}"
    if fate.erasable_at is not None:
        return f"Erased: by the first run ({run}) from {_at(fate.erasable_at, now)} on.{kept}"
    if fate.waits_for_members:
        return f"Erased: by the first run ({run}) after every member has fetched it.{kept}"
    return f"Erased: never, by the policy as it is.{kept}"


def _at(seconds: int, now: int) -> str:
    """Write a second in UTC, and how far away it is."""
    far = seconds - now
    if not far:
        return f"{second(seconds)} UTC (now)"
    return f"{second(seconds)} UTC ({f'in {_words(far)}' if far > 0 else f'{_words(-far)} ago'})"


def _words(seconds: int) -> str:
    """Write seconds in words, in the greatest unit of which there is at least one. Rounds down."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), (1, "second"))
    return counted(seconds // size, unit)
