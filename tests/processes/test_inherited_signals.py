"""Servers that are started with signals ignored or blocked, as by nohup, a script's `&`, a bad parent."""

import os
import signal
from pathlib import Path

from tests.processes.test_deaths import OFTEN, SQL
from tests.processes.test_reload import events
from tests.support.server import ServerProcess, waiting

ALL_AT_ONCE = ("env", "--ignore-signal=HUP,INT,TERM,CHLD", "--block-signal=HUP,INT,TERM,CHLD")


def reload(server: ServerProcess) -> None:
    """Have the settings read again, and wait until they are."""
    before = len(events(server, "reloaded"))
    os.kill(server.process.pid, signal.SIGHUP)
    for _ in waiting("a reload"):
        if len(events(server, "reloaded")) > before:
            return


def test_a_server_reloads_and_ends_whatever_signals_were_ignored_or_blocked(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, OFTEN + SQL, within=ALL_AT_ONCE) as server:
        server.wait_for("cleanup_run")
        [worker] = server.descendants()
        os.kill(worker, signal.SIGKILL)
        assert server.wait_for("cleanup_worker_ended")["reason"] == "the cleanup worker ended with status -9"
        os.kill(server.process.pid, signal.SIGINT)
        reload(server)
        assert not events(server, "stopping"), "SIGINT stays ignored, as by a script that puts it into the background"
        assert server.stop()[0] == 0
