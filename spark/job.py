"""The entry point for spark-submit: runs `conclave cleanup run`."""

import os

from conclave.cli.cleanup import run_cleanup

if __name__ == "__main__":
    os.umask(0o077)  # like all commands
    run_cleanup()
