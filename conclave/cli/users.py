"""The ``conclave user`` commands."""

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Concatenate, ParamSpec
from uuid import UUID

import click
from marshmallow import ValidationError
from rich.table import Table

from conclave.actions import accounts, users
from conclave.actions.command_runner import CommandRunner
from conclave.auth.passwords import hash_password, new_password
from conclave.cli.common import CliError, config_option, confirm
from conclave.cli.open_store import open_store
from conclave.cli.tables import counted, print_table, visible
from conclave.errors import ConflictError, NotFoundError
from conclave.store.resources.accounts import Account, StoredData
from conclave.store.resources.audit import AuditAction
from conclave.store.resources.users import UserRow
from conclave.system import operator_identity
from conclave.wire.fields import ALIAS_RULE, NAME_RULE, PASSWORD_RULE

_name = click.argument("name")

P = ParamSpec("P")


@click.group()
def user() -> None:
    """Manage accounts. The server may be running."""


@user.command("list")
@config_option
@click.option("--like", metavar="TEXT", default="", help="Only names or aliases that contain TEXT.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; times in Unix seconds.")
def list_accounts(path: Path | None, like: str, *, as_json: bool) -> None:
    """List accounts by name."""
    with open_store(path) as outside:
        listed = outside.read(accounts.list_all, outside.context(), like)
    if as_json:
        for each in listed:
            click.echo(json.dumps(asdict(each) | {"user_id": str(UUID(bytes=each.user_id))}))
    else:
        _show(listed)


@user.command()
@config_option
@_name
@click.option("--json", "as_json", is_flag=True, help="One JSON object; times in Unix seconds.")
def show(path: Path | None, name: str, *, as_json: bool) -> None:
    """Show details of an account, and how much is stored of it."""
    with open_store(path) as outside:
        try:
            account, kept = outside.read(accounts.show, outside.context(), name)
        except (NotFoundError, UnicodeEncodeError) as error:
            raise CliError(f"{visible(name)}: no such user") from error
    if as_json:
        click.echo(json.dumps(asdict(account) | asdict(kept) | {"user_id": str(UUID(bytes=account.user_id))}))
        return
    for label, value in _lines(account, kept):
        click.echo(f"{label + ':':17}{value}")


@user.command()
@config_option
@_name
@click.option("--alias", default="", help="The alias that other users see.")
@click.option("--prompt", is_flag=True, help="Ask for the password, or read it from standard input.")
def create(path: Path | None, name: str, alias: str, *, prompt: bool) -> None:
    """Create an account, even if registration is closed, and print its password.

    With --prompt the password is asked for and not printed.
    """
    with open_store(path) as outside:
        _check(NAME_RULE, name, "the name")
        _check(ALIAS_RULE, alias, "the alias")
        password = _ask_password() if prompt else new_password()
        context, actor = outside.context(), operator_identity.current()
        try:
            outside.write(accounts.create, context, actor, name, _hashed(password), alias)
        except ConflictError as error:
            raise CliError(f"{name}: this name is taken") from error
    if not prompt:
        click.echo(password)
    click.echo(f"{name}: created", err=True)


@user.command("reset-password")
@config_option
@_name
@click.option("--prompt", is_flag=True, help="Ask for the password, or read it from standard input.")
def reset_password(path: Path | None, name: str, *, prompt: bool) -> None:
    """Set a new password, print it, and log the user out.

    With --prompt it is asked for and not printed.
    """
    with open_store(path) as outside:
        user_id = _find(outside, name).user_id
        password = _ask_password() if prompt else new_password()
        # Hashed before taking the write lock.
        change(outside, AuditAction.PASSWORD_RESET, accounts.reset_password, user_id, _hashed(password))
    if not prompt:
        click.echo(password)
    click.echo(f"{name}: password changed, logged out", err=True)


@user.command()
@config_option
@_name
def disable(path: Path | None, name: str) -> None:
    """Log a user out, prevent logins, and withdraw the user's pending invites.

    Memberships and messages stay.
    """
    with open_store(path) as outside:
        change(outside, AuditAction.ACCOUNT_DISABLED, accounts.disable, _find(outside, name).user_id)
    click.echo(f"{name}: disabled, and logged out")


@user.command()
@config_option
@_name
def enable(path: Path | None, name: str) -> None:
    """Allow a disabled user to log in again."""
    with open_store(path) as outside:
        change(outside, AuditAction.ACCOUNT_ENABLED, accounts.enable, _find(outside, name).user_id)
    click.echo(f"{name}: enabled")


@user.command()
@config_option
@_name
def unblock(path: Path | None, name: str) -> None:
    """Reset the count of wrong passwords for an account.

    A disabled account stays disabled: see enable.
    """
    with open_store(path) as outside:
        found = _find(outside, name)
        change(outside, AuditAction.LOGIN_UNBLOCKED, accounts.unblock, found.user_id)
        [account, _] = outside.read(accounts.show, outside.context(), name)
    click.echo(f"{name}: unblocked, takes effect within a second")
    if account.disabled:
        click.echo(f"{name}: still disabled; use `conclave user enable`", err=True)


@user.command()
@config_option
@_name
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(path: Path | None, name: str, *, yes: bool) -> None:
    """Delete an account with its messages and memberships."""
    with open_store(path) as outside:
        found = _find(outside, name)
        if not yes:
            confirm(f"Permanently delete the account {name} ({UUID(bytes=found.user_id)})?")
        context = outside.context()

        def remove(connection: sqlite3.Connection, user_id: bytes) -> None:
            accounts.remove(connection, context, user_id)

        change(outside, AuditAction.ACCOUNT_DELETED, remove, found.user_id)
    click.echo(f"{name}: deleted")


def change(
    outside: CommandRunner,
    audit_action: AuditAction,
    action: Callable[Concatenate[sqlite3.Connection, bytes, P], None],
    user_id: bytes,
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Change an account, and record it in the audit log. Raises CommandRunnerError or NotFoundError."""
    actor = operator_identity.current()
    outside.write(accounts.audited, outside.context(), actor, audit_action, action, user_id, *args, **kwargs)


def _find(outside: CommandRunner, name: str) -> UserRow:
    """Return the account with this name. Raises CommandRunnerError or CliError."""
    try:
        return outside.read(users.by_name, name)
    except (NotFoundError, UnicodeEncodeError) as error:  # the latter: not UTF-8
        raise CliError(f"{visible(name)}: no such user") from error


def _hashed(password: str) -> str:
    """Return the hash of a password. Raises CliError if the protocol does not allow it."""
    _check(PASSWORD_RULE, password, "the password")
    return hash_password(password)


def _check(rule: Callable[[str], object], text: str, what: str) -> None:
    """Raise CliError unless ``text`` fits a rule of the protocol."""
    try:
        text.encode()
        rule(text)
    except UnicodeEncodeError as error:
        raise CliError(f"{what} is not UTF-8") from error
    except ValidationError as error:
        raise CliError(f"{what} {' '.join(map(str, error.messages))}") from error


def _ask_password() -> str:
    """Return a new password: typed twice on a terminal, or a line of standard input. Raises CliError."""
    if sys.stdin.isatty():
        typed: str = click.prompt("New password", hide_input=True, confirmation_prompt=True, err=True)
        return typed
    try:
        # A \r from a Windows line end is not part of the password.
        return sys.stdin.buffer.readline().removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise CliError("the password is not UTF-8") from error


def _show(listed: Sequence[Account]) -> None:
    table = Table("name", "id", "alias", "created (UTC)", "last used (UTC)", "groups", "sessions", "disabled")
    for each in listed:
        table.add_row(
            each.username,
            str(UUID(bytes=each.user_id)),
            each.alias,
            _minute(each.created_at),
            "" if each.last_used_at is None else _minute(each.last_used_at),
            str(each.groups),
            str(each.sessions),
            "yes" if each.disabled else "",
        )
    print_table(table, "no accounts")


def _lines(account: Account, kept: StoredData) -> Iterator[tuple[str, str]]:
    """Yield names and values for one account."""
    yield "user", account.username
    yield "id", str(UUID(bytes=account.user_id))
    if account.alias:
        yield "alias", visible(account.alias)
    yield "created", f"{_minute(account.created_at)} UTC"
    last = account.last_used_at
    yield "last used", "no session" if last is None else f"{_minute(last)} UTC"
    yield "sessions", f"{account.sessions:,}"
    yield "groups", f"{account.groups:,}"
    yield "disabled", "yes" if account.disabled else "no"
    yield "in the database", f"{counted(kept.messages, 'message')} with {kept.message_bytes:,} bytes"
    yield "in the archive", f"messages in {counted(kept.archived_groups, 'group')}" if kept.archived_groups else "none"
    yield "key packages", f"{kept.key_packages:,}"
    yield "waiting", f"{counted(kept.invites, 'invite')}, {counted(kept.welcomes, 'welcome')}"
    yield "legal holds", ", ".join(map(str, kept.holds)) or "none on the user"


def _minute(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
