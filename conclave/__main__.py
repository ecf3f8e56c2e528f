"""``python -m conclave`` is the ``conclave`` command, and says what to install where that lacks something."""

import sys

from conclave import install_hint
from conclave.system import signals

REQUIRED_MODULES = ("click",)
"""What every command needs, and an installation of the library alone has not."""


def main() -> None:
    """Run the command that the arguments name, and end the process."""
    signals.reset_inherited()
    try:
        from conclave.cli.main import main as run  # noqa: PLC0415 - where it cannot be imported, that is told
    except ModuleNotFoundError as error:
        if error.name not in REQUIRED_MODULES:
            raise
        sys.exit(
            f"conclave: {error.name} is not installed: the library alone is here. The server and its commands need the"
            f" extra server, the chat the extra client. {install_hint('server')}"
        )
    run()


if __name__ == "__main__":
    main()
