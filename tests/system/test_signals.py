"""What a process takes over of the signals of whatever starts it."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import signal
from conclave.system import signals
signals.reset_inherited()
print(*(each.name for each in signal.Signals if signal.getsignal(each) is signal.SIG_IGN))
print(*(each.name for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())))
print(*(each.name for each in signals.stop_signals()))
"""


def shown(tmp_path: Path, *env: str) -> list[str]:
    """The signals that are ignored, those that are blocked, and those that end a server."""
    command = ["env", *env, sys.executable, "-P", "-c", PROGRAM]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()


def test_what_is_blocked_comes_and_what_is_ignored_on_purpose_stays_so(tmp_path: Path) -> None:
    told = shown(tmp_path, "--default-signal", "--ignore-signal=HUP,INT,TERM,CHLD", "--block-signal=HUP,INT,TERM,CHLD")
    assert told == ["SIGHUP SIGINT SIGPIPE SIGTERM SIGXFSZ", "", "SIGTERM"], "Python ignores two for itself"


def test_a_server_ends_by_ctrl_c_too_unless_that_is_ignored(tmp_path: Path) -> None:
    assert shown(tmp_path, "--default-signal") == ["SIGPIPE SIGXFSZ", "", "SIGTERM SIGINT"]
