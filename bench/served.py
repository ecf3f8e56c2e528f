"""Serves a store of 128 users until its input ends, for ``bench.in_turn``: run by a checkout's own Python, in it.

The output is the server's port and process, and what to ask of it, pickled. It uses no more of ``bench`` than former
versions have.
"""

import os
import pickle
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))

from bench import requests, stores
from bench.hot import BODY_BYTES, GROUPS, MEMBERS, PAGE, USERS
from bench.process import Server
from conclave.wire.negotiate import Format


def main() -> None:
    out, sys.stdout = sys.stdout.buffer, sys.stderr  # what the code logs is not for the reader
    now = int(time.time())
    with tempfile.TemporaryDirectory(prefix="conclave-bench-") as folder:
        shape = stores.Shape(USERS, GROUPS, MEMBERS, body=os.urandom(BODY_BYTES))
        store = stores.build(Path(folder), "sql", now, shape, [now] * PAGE)
        with Server(store.config) as server:
            server.wait_for("cleanup_run")
            asked = {}
            for what, after in (("nothing new", PAGE), (f"page of {PAGE}", 0), ("send", None)):
                for connections in (1, 16):
                    for written in (Format.PROTOBUF, Format.JSON):
                        asked[f"{what}, {connections} {written.name.lower()}"] = (
                            requests.sends(store, connections, written, BODY_BYTES)
                            if after is None
                            else requests.fetches(store, connections, written, after, PAGE)
                        )
            pickle.dump((int(server.url.rpartition(":")[2]), server.process.pid, asked), out)
            out.flush()
            sys.stdin.read()


if __name__ == "__main__":
    main()
