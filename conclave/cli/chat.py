"""``conclave chat``: the terminal chat."""

import asyncio
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from conclave.client.chat.accounts import default_home
from conclave.client.chat.app import ChatApp
from conclave.client.chat.formatting import parse_lifetime
from conclave.client.chat.login import server_url
from conclave.client.chat.notifications import NotificationMode
from conclave.client.chat.options import ChatOptions, create_mls_codec


class LifetimeParam(click.ParamType[int]):
    """A duration, such as 1d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the seconds."""
        try:
            return value if isinstance(value, int) else parse_lifetime(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class CodecParam(click.ParamType[Any]):
    """A codec of another package: MODULE:NAME."""

    name = "codec"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the callable that creates the codec."""
        module, _, name = str(value).partition(":")
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            self.fail(f"{value}: {error}; write MODULE:NAME", param, ctx)


@click.command(short_help="Chat in the terminal.")
@click.argument("server", default="")
@click.option("--user", default="", metavar="NAME", help="Continue or log in as NAME.")
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Trust only the certificate authorities in this file.",
)
@click.option(
    "--auth-header",
    default="Authorization",
    metavar="NAME",
    help="The HTTP header for the token.",
)
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for sessions, keys and messages.",
)
@click.option("--in-memory", is_flag=True, help="Keep messages in memory only.")
@click.option(
    "--keep-fetched",
    type=LifetimeParam(),
    metavar="TIME",
    help="Delete messages of delete-after-fetch groups TIME after they arrived.",
)
@click.option("--plain", is_flag=True, help="For screen readers: one column, words instead of symbols, no countdowns.")
@click.option(
    "--calls",
    type=click.Choice([each.value for each in NotificationMode]),
    default=NotificationMode.DESKTOP.value,
    envvar="CONCLAVE_CHAT_CALLS",
    show_default=True,
    help="Notifications of mentions and direct messages: none, bell, desktop notification, or one with text.",
)
@click.option(
    "--codec",
    "make_codec",
    type=CodecParam(),
    metavar="MODULE:NAME",
    help="Encrypt with this codec instead of MLS: see docs/chat.md.",
)
@click.option("--plaintext", is_flag=True, help="Do not encrypt: the server and its operator can read everything.")
def chat(
    server: str,
    user: str,
    ca: Path | None,
    auth_header: str,
    home: Path | None,
    in_memory: bool,  # noqa: FBT001 - click passes flags like this
    keep_fetched: int | None,
    plain: bool,  # noqa: FBT001 - as above
    calls: str,
    make_codec: Any,
    plaintext: bool,  # noqa: FBT001 - as above
) -> None:
    """Chat in groups whose messages expire.

    SERVER is an address such as chat.example.org. Without it, the last session continues, or the server on this machine
    is used. User name and password are entered in a form, not on the command line.
    """
    try:
        url = server_url(server) if server else ""
    except ValueError as error:
        raise click.BadParameter(f"{server} is not a valid address; expected one such as chat.example.org") from error
    if plaintext and make_codec:
        raise click.BadParameter("--plaintext and --codec exclude each other")
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise click.ClickException(
            "conclave chat needs a terminal; for programs, use conclave.client, see docs/client.md"
        )
    options = ChatOptions(
        url=url,
        username=user,
        ca=ca,
        auth_header=auth_header,
        home=home or default_home(),
        keeps_history=not in_memory,
        keep_fetched=keep_fetched,
        is_plain=plain,
        notifications=NotificationMode(calls),
        make_codec=None if plaintext else make_codec or create_mls_codec,
    )
    why = asyncio.run(_run(options))
    if why:
        raise click.ClickException(why)


async def _run(options: ChatOptions) -> str:
    app = ChatApp(options)
    try:
        return await app.run_async() or ""
    finally:
        await app.close_conversation()
