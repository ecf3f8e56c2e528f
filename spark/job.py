"""The entry for spark-submit: `conclave cleanup run`."""

import os

from conclave.cli.cleanup import run_cleanup

if __name__ == "__main__":
    os.umask(0o077)  # as the command line has it for all commands
    run_cleanup()
