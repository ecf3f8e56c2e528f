"""The ``conclave invite-token`` commands."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from conclave.actions import registration_tokens as actions
from conclave.actions.registration_tokens import MAX_NOTE_LENGTH, MAX_USES, RegistrationToken
from conclave.auth.passwords import new_password
from conclave.auth.tokens import token_hash
from conclave.cli.common import NUMBER, DurationParam, TextParam, config_option
from conclave.cli.open_store import open_store
from conclave.cli.tables import counted, print_table, second
from conclave.system import operator_identity


@click.group("invite-token")
def invite_token() -> None:
    """Manage registration tokens.

    A token creates a limited number of accounts until it expires. Tokens are needed if registration_enabled = false or
    if a registration_token is set, which stays valid beside them.
    """


@invite_token.command()
@config_option
@click.option("--uses", default=1, show_default=True, type=click.IntRange(1, MAX_USES), help="How many accounts.")
@click.option(
    "--expires", default="7d", show_default=True, type=DurationParam(), metavar="DURATION", help="How long it is valid."
)
@click.option("--note", default="", type=TextParam(), metavar="TEXT", help="A note for list and the audit log.")
def new(path: Path | None, uses: int, expires: int, note: str) -> None:
    """Create a token and print it on standard output. It cannot be shown again, since only its hash is stored."""
    if len(note) > MAX_NOTE_LENGTH:
        raise click.UsageError(f"the note has more than {MAX_NOTE_LENGTH:,} characters")
    token = new_password()
    with open_store(path) as outside:
        added = outside.write(
            actions.add, outside.context(), operator_identity.current(), token_hash(token), uses, expires, note
        )
    click.echo(token)
    click.echo(
        f"token {added.token_id}: valid for {counted(uses, 'account')} until {second(added.expires_at)} UTC", err=True
    )
    if outside.config.registration_enabled and outside.config.registration_token is None:
        click.echo("note: with this configuration, registration needs no token", err=True)


@invite_token.command("list")
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; times in Unix seconds.")
def list_tokens(path: Path | None, *, as_json: bool) -> None:
    """List tokens, oldest first; the tokens themselves are not shown.

    Expired tokens are listed for 30 days; then cleanup removes them.
    """
    with open_store(path) as outside:
        listed, now = outside.read(actions.list_all), outside.context().now()
    if as_json:
        for each in listed:
            click.echo(json.dumps(asdict(each) | {"expires_at": each.expires_at, "state": each.state(now)}))
    else:
        _show(listed, now)


@invite_token.command(short_help="Revoke a token.")
@config_option
@click.argument("token_id", metavar="ID", type=NUMBER)
def revoke(path: Path | None, token_id: int) -> None:
    """Revoke a token. Accounts created with it stay."""
    with open_store(path) as outside:
        removed = outside.write(actions.revoke, outside.context(), operator_identity.current(), token_id)
    click.echo(f"token {token_id}: revoked; {counted(removed.uses, 'account')} created with it")


def _show(listed: Sequence[RegistrationToken], now: int) -> None:
    table = Table("token", "state", "accounts", "expires (UTC)", "created (UTC)", "by", "note")
    for each in listed:
        table.add_row(
            str(each.token_id),
            each.state(now),
            f"{each.uses:,} of {each.most_uses:,}",
            second(each.expires_at),
            second(each.created_at),
            each.added_by,
            each.note,
        )
    print_table(table, "no registration tokens")
