"""The entry for spark-submit: does what `conclave cleanup run` does."""

import os

from conclave.cli.cleanup import run_cleanup

if __name__ == "__main__":
    os.umask(0o077)  # as the command line has it for all commands
    run_cleanup()
