"""Runs the ``conclave`` command as ``python -m conclave``, and says what to install if a module is missing."""

import sys

from conclave import install_hint
from conclave.system import signals

REQUIRED_MODULES = ("click",)
"""The modules that every command needs, and that an installation of the client library alone lacks."""


def main() -> None:
    """Run the command that the arguments name, then exit."""
    signals.reset_inherited()
    try:
        from conclave.cli.main import main as run  # noqa: PLC0415 - an import error is reported below
    except ModuleNotFoundError as error:
        if error.name not in REQUIRED_MODULES:
            raise
        sys.exit(
            f"conclave: {error.name} is not installed. The server and its commands need the extra server, the chat the"
            f" extra client. {install_hint('server')}"
        )
    except KeyboardInterrupt:
        sys.exit("Aborted!")  # as click says once it is imported
    run()


if __name__ == "__main__":
    main()
