"""The ``conclave`` command. It imports a family of commands only when one of them is asked for."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from conclave import __version__, install_hint
from conclave.cli import streams
from conclave.logs.lines import visible_lines
from conclave.system import signals

OF_CLIENTS = ("chat",)
"""The commands that an installation for clients alone has."""


class Family(click.Command):
    """Stands for a command in another module. Knows only its name and its line in the help."""

    def __init__(self, name: str, module: str, listed: str) -> None:
        """``module``: the module of this package that has the command. ``listed``: its line in the help."""
        super().__init__(name, help=listed)
        self._module = module

    def load(self) -> click.Command:
        """Return the command itself."""
        name = str(self.name).replace("-", "_")
        gc.disable()  # what an import makes stays: to search it for garbage, now or later, is a tenth of the start
        try:
            module = import_module(f"conclave.cli.{self._module}")
        except ModuleNotFoundError as error:
            needed = str(error.name).partition(".")[0]
            if needed in ("conclave", "spark"):
                raise
            extra = "client" if self.name in OF_CLIENTS else "server"
            raise click.ClickException(
                f"{needed} is not installed: conclave {self.name} needs the extra {extra}. {install_hint(extra)}"
            ) from error
        finally:
            gc.freeze()
            gc.enable()
        command: click.Command = getattr(module, name)
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Load the command, which goes on from here."""
        return self.load().make_context(info_name, args, parent, **extra)


class Program(click.Group):
    """The command as a whole, with its standard streams in order; errors show what would deceive in arguments."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command that the arguments name, and end the process."""
        with streams.in_order():
            return super().main(*args, **extra)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the arguments that come before the command's name."""
        with _visible_errors():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Read the other arguments, and run the command."""
        with _visible_errors():
            return super().invoke(ctx)


@contextmanager
def _visible_errors() -> Iterator[None]:
    """Make visible what would deceive in errors of the block. Some of click's repeat arguments as they are."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise  # it shows the help
    except click.UsageError as error:
        raise click.UsageError(visible_lines(error.format_message()), error.ctx) from error
    except click.ClickException as error:
        raise click.ClickException(visible_lines(error.format_message())) from error


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="conclave")
@click.pass_context
def main(context: click.Context) -> None:
    """Serve groups that forget on time."""
    os.umask(0o077)  # files in the data directory are the operator's alone
    if context.invoked_subcommand == "serve":
        signals.ignore_hangup()  # before the server's modules are loaded, which takes most of a start


main.add_command(Family("archive", "archive", "Check the archive of older messages, or restore a group."))
main.add_command(Family("backup", "backup", "Make a backup, and see and check those that are there."))
main.add_command(Family("chat", "chat", "Talk in groups that forget on time, in the terminal."))
main.add_command(Family("check-config", "check_config", "Check a configuration, and tell what it would do."))
main.add_command(Family("cleanup", "cleanup", "Delete what is due."))
main.add_command(Family("completion", "completion", "Print what makes a shell complete commands, options and files."))
main.add_command(Family("doctor", "doctor", "Look for what is wrong, and say what to do about it."))
main.add_command(Family("evidence", "evidence", "Print the audit log, receipts, and the ledger."))
main.add_command(Family("explain", "retention", "Explain what becomes of a group's messages, and why."))
main.add_command(Family("export", "export", "Export what the server holds about USER, a name or an id, as JSON."))
main.add_command(Family("group", "groups", "See the groups: policies, amounts, what is overdue."))
main.add_command(Family("hold", "holds", "Keep messages from being erased: legal holds."))
main.add_command(Family("invite-token", "registration_tokens", "Let people register by tokens that end."))
main.add_command(Family("restore", "restore", "Restore a backup, where nothing is yet."))
main.add_command(Family("serve", "serve", "Serve clients, and clean up every cleanup_interval."))
main.add_command(Family("status", "status", "Print how the running server is: health, runs, what is overdue, sizes."))
main.add_command(Family("user", "users", "Manage accounts, while the server runs or not."))
main.add_command(Family("verify-erasure", "verify_erasure", "Prove that nothing that was erased can be decrypted."))
