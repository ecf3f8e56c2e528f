"""The command line as a whole: one module a family of commands, imported when one of them is asked for."""

import os
from importlib import import_module
from typing import Any

import click

from conclave import __version__


class Family(click.Command):
    """Stands for a command of another module of this package, of which it knows the name and what help lists of it."""

    def __init__(self, name: str, module: str, listed: str) -> None:
        """``module`` has the command, under its name."""
        super().__init__(name, help=listed)
        self._module = module

    def load(self) -> click.Command:
        """Return the command itself."""
        command: click.Command = getattr(import_module(f"conclave.cli.{self._module}"), str(self.name))
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Go on with the command itself."""
        return self.load().make_context(info_name, args, parent, **extra)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="conclave")
def main() -> None:
    """Serve groups that forget on time."""
    os.umask(0o077)  # what lies under the data directory is the operator's alone


main.add_command(Family("archive", "archive", "See to the archive of older messages."))
main.add_command(Family("cleanup", "cleanup", "Delete what is due."))
main.add_command(Family("serve", "serve", "Serve clients, and clean up every cleanup_interval."))
main.add_command(Family("user", "users", "See to accounts, while the server runs or not."))
