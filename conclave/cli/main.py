"""The ``conclave`` command. It imports a subcommand's module only when needed."""

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

CLIENT_COMMANDS = ("chat",)
"""The commands of a client-only installation."""


class LazyCommand(click.Command):
    """A placeholder that loads a command from its module."""

    def __init__(self, name: str, module: str, listed: str) -> None:
        """``module``: the module with the command. ``listed``: its line in the help."""
        super().__init__(name, help=listed)
        self._module = module

    def load(self) -> click.Command:
        """Return the command."""
        name = str(self.name).replace("-", "_")
        gc.disable()  # imported objects stay; scanning them takes a tenth of the start
        try:
            module = import_module(f"conclave.cli.{self._module}")
        except ModuleNotFoundError as error:
            needed = str(error.name).partition(".")[0]
            if needed in ("conclave", "spark"):
                raise
            extra = "client" if self.name in CLIENT_COMMANDS else "server"
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
        """Load the command, and delegate to it."""
        return self.load().make_context(info_name, args, parent, **extra)


class RootGroup(click.Group):
    """The root command, with checked standard streams and sanitized errors."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command, and exit."""
        with streams.checked():
            return super().main(*args, **extra)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the options before the subcommand."""
        with _visible_errors():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Parse the other arguments, and run the command."""
        with _visible_errors():
            return super().invoke(ctx)


@contextmanager
def _visible_errors() -> Iterator[None]:
    """Make control characters in errors visible; some of click's errors repeat arguments."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise  # shows the help
    except click.UsageError as error:
        raise click.UsageError(visible_lines(error.format_message()), error.ctx) from error
    except click.ClickException as error:
        raise click.ClickException(visible_lines(error.format_message())) from error


@click.group(cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="conclave")
@click.pass_context
def main(context: click.Context) -> None:
    """A group messaging server whose messages expire on time."""
    os.umask(0o077)  # only the operator can read the data directory
    if context.invoked_subcommand == "serve":
        signals.ignore_hangup()  # before the slow import of the server's modules


main.add_command(LazyCommand("archive", "archive", "Inspect and verify the archive, or restore a group."))
main.add_command(LazyCommand("backup", "backup", "Make, list and verify backups."))
main.add_command(LazyCommand("chat", "chat", "Chat in the terminal."))
main.add_command(LazyCommand("check-config", "check_config", "Check a configuration, and show what it would change."))
main.add_command(LazyCommand("cleanup", "cleanup", "Run cleanup, or show its history."))
main.add_command(LazyCommand("completion", "completion", "Print a shell completion script."))
main.add_command(LazyCommand("doctor", "doctor", "Check the installation, and suggest remedies."))
main.add_command(LazyCommand("evidence", "evidence", "Print the audit log, receipts, and the ledger."))
main.add_command(LazyCommand("explain", "retention", "Explain when and why a group's messages are hidden and erased."))
main.add_command(LazyCommand("export", "export", "Export a user's data as JSON."))
main.add_command(LazyCommand("group", "groups", "List and show groups: policies, sizes, overdue messages."))
main.add_command(LazyCommand("hold", "holds", "Manage legal holds, which prevent messages from being erased."))
main.add_command(LazyCommand("invite-token", "registration_tokens", "Manage registration tokens."))
main.add_command(LazyCommand("restore", "backup", "Restore a backup to an empty location."))
main.add_command(LazyCommand("serve", "serve", "Run the server."))
main.add_command(LazyCommand("status", "status", "Show the status of the running server."))
main.add_command(LazyCommand("user", "users", "Manage accounts."))
main.add_command(LazyCommand("verify-erasure", "verify_erasure", "Verify that erased messages cannot be decrypted."))
