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


class Lifetime(click.ParamType[int]):
    """A duration, as 1d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return its seconds."""
        try:
            return value if isinstance(value, int) else parse_lifetime(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class MadeByModule(click.ParamType[Any]):
    """A codec of another package: MODULE:NAME."""

    name = "codec"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return what makes it."""
        module, _, name = str(value).partition(":")
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            self.fail(f"{value}: {error}; write MODULE:NAME", param, ctx)


@click.command(short_help="Talk in groups that forget on time, in the terminal.")
@click.argument("server", default="")
@click.option("--user", default="", metavar="NAME", help="Go on as NAME, or log in as NAME.")
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Trust only the authorities in this file.",
)
@click.option(
    "--auth-header",
    default="Authorization",
    metavar="NAME",
    help="The header for the token, if the server has another one.",
)
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where sessions and messages are kept.",
)
@click.option("--in-memory", is_flag=True, help="Keep messages in memory only, in no file.")
@click.option(
    "--keep-fetched",
    type=Lifetime(),
    metavar="TIME",
    help="Forget messages of delete-after-fetch groups TIME after they came.",
)
@click.option("--plain", is_flag=True, help="For screen readers: one column, words in place of marks, no countdown.")
@click.option(
    "--calls",
    type=click.Choice([each.value for each in NotificationMode]),
    default=NotificationMode.DESKTOP.value,
    envvar="CONCLAVE_CHAT_CALLS",
    show_default=True,
    help="How to call when somebody means you, or writes to you alone: the bell, a notification too, or its text too.",
)
@click.option(
    "--codec",
    "make_codec",
    type=MadeByModule(),
    metavar="MODULE:NAME",
    help="What encrypts in place of MLS: see docs/chat.md.",
)
@click.option("--plaintext", is_flag=True, help="Encrypt nothing: the server and its operator can read everything.")
def chat(
    server: str,
    user: str,
    ca: Path | None,
    auth_header: str,
    home: Path | None,
    in_memory: bool,  # noqa: FBT001 - click hands flags over like this
    keep_fetched: int | None,
    plain: bool,  # noqa: FBT001 - as above
    calls: str,
    make_codec: Any,
    plaintext: bool,  # noqa: FBT001 - as above
) -> None:
    """Talk in groups that forget on time.

    SERVER is an address, as chat.example.org; without it the last session goes on, or the server on this machine is
    asked. Names and passwords are typed into a form, never here.
    """
    try:
        url = server_url(server) if server else ""
    except ValueError as error:
        raise click.BadParameter(f"{server} is no address; write one as chat.example.org") from error
    if plaintext and make_codec:
        raise click.BadParameter("--plaintext and --codec exclude each other")
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise click.ClickException("conclave chat needs a terminal; a program uses conclave.client, see docs/client.md")
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
