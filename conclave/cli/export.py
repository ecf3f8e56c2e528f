"""The ``conclave export`` command."""

import base64
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

import click

from conclave.actions import explain, export as actions
from conclave.actions.command_runner import CommandRunner, CommandRunnerError
from conclave.actions.context import Context
from conclave.actions.explain import SettingsError
from conclave.actions.export import Export
from conclave.archive import queries
from conclave.archive.faults import UnreadableArchiveError
from conclave.cli.common import (
    NUMBER,
    CliError,
    TextParam,
    command_config,
    config_option,
    exit_on_signals,
    one_line_errors,
)
from conclave.cli.tables import counted, visible
from conclave.clock import SystemClock
from conclave.config.load import ConfigError
from conclave.config.settings import Config
from conclave.errors import NotFoundError
from conclave.retention.policy import KEEP
from conclave.store.archive import moves
from conclave.store.views import export as stored
from conclave.system import operator_identity

_EXPECTED = (
    ConfigError,
    CommandRunnerError,
    NotFoundError,
    SettingsError,
    CliError,
    UnreadableArchiveError,
)


@click.command()
@config_option
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Create this file, with mode 0600; default: standard output.",
)
@click.option("--hold", "hold_id", type=NUMBER, metavar="ID", help="Export what this legal hold on a user covers.")
@click.argument("user", metavar="[USER]", required=False, type=TextParam())
def export(path: Path | None, output: Path | None, hold_id: int | None, user: str | None) -> None:
    """Export a user's data as JSON. USER is a name or an id.

    It includes account, sessions, memberships, key packages, invites, bans, holds, entries of the audit log, and sent
    messages with their encrypted bodies. Expired messages are omitted, as for clients.

    With --hold, all stored messages of the user are exported, hidden ones too, even if the account was deleted. A
    deleted account under a hold can also be given by its id.
    """
    if (user is None) == (hold_id is None):
        raise click.UsageError("give either USER or --hold")
    with exit_on_signals(), one_line_errors(*_EXPECTED), ExitStack() as held:
        config = command_config(path)
        outside = CommandRunner(config, SystemClock(), with_keys=True)
        outside.read(explain.in_force, config)
        if config.archive.after != KEEP or outside.read(moves.is_in_use):
            # Without runs nothing moves to the archive, so each message is found once.
            held.enter_context(
                outside.without_runs(partial(click.echo, "waiting for the cleanup run under way", err=True))
            )
        who = outside.context(), operator_identity.current()
        if hold_id is not None:
            begun = outside.write(actions.begin_held, *who, hold_id)
        else:
            begun = outside.write(actions.begin, *who, user or "")
        with _open_output(output) as file:
            count = _write(file, outside, config, begun)
    click.echo(visible(f"{begun.name}: exported, with {counted(count, 'message')}"), err=True)


@contextmanager
def _open_output(output: Path | None) -> Iterator[BinaryIO]:
    """Open the output. An incomplete file is removed. Raises CliError."""
    if output is None:
        with _named_errors("standard output"):
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        return
    with _named_errors(output):
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with _named_errors(output), os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        output.unlink(missing_ok=True)
        raise


@contextmanager
def _named_errors(where: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CliError(f"{where}: {error.strerror}") from error


def _write(file: BinaryIO, outside: CommandRunner, config: Config, begun: Export) -> int:
    """Write one JSON object, one line for each message; return the number of messages."""
    context = outside.context()
    head = json.dumps({"exported_at": context.now(), **begun.about}, default=_base64, indent=1)
    file.write(head.removesuffix("\n}").encode() + b',\n "messages": [')
    count = 0
    found = (
        _held(outside, config, begun.user_id) if begun.is_held else _messages(outside, config, begun.user_id, context)
    )
    for each in found:
        line = json.dumps(each, default=_base64)
        file.write(f"{',' if count else ''}\n  {line}".encode())
        count += 1
    file.write(b"\n ]\n}\n")
    return count


def _messages(outside: CommandRunner, config: Config, user_id: bytes, context: Context) -> Iterator[dict[str, Any]]:
    """Yield the user's messages group by group: those in the archive first, in any order.

    Messages that expire meanwhile are omitted.
    """
    for group_id in outside.read(actions.groups_of_sender, user_id):
        of_group = {"group_id": str(UUID(bytes=group_id))}
        stretch = outside.read(actions.stretch, group_id, context.now())
        if stretch:
            with outside.keys() as keys:
                for old in queries.messages_of_user(config, stretch, user_id, keys):
                    yield of_group | old._asdict() | {"self_destruct_seconds": 0}
        after: int | None = 0
        while after is not None:
            page = outside.read(actions.page, group_id, user_id, after, context.now())
            if page is None:
                break  # deleted meanwhile
            for message in page.messages:
                yield of_group | message._asdict()
            after = page.after


def _held(outside: CommandRunner, config: Config, user_id: bytes) -> Iterator[dict[str, Any]]:
    """Yield all stored messages of the user, hidden ones too; those in the archive first."""
    if outside.read(moves.has_parts):
        with outside.keys() as keys:
            places = outside.read(stored.held_groups)
            for group_id, old in queries.held_messages_of_user(config, places, user_id, keys):
                yield {"group_id": str(UUID(bytes=group_id))} | old._asdict() | {"self_destruct_seconds": 0}
    for place in outside.read(stored.held_groups_of_sender, user_id):
        after: int | None = 0
        while after is not None:
            page = outside.read(stored.held_page, place, user_id, after)
            for message in page.messages:
                yield {"group_id": str(UUID(bytes=place.group_id))} | message._asdict()
            after = page.after


def _base64(value: Any) -> str:
    return base64.b64encode(value).decode()
