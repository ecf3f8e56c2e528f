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
from typing import BinaryIO

sys.path.insert(0, str(Path.cwd()))

from bench import requests, stores
from bench.hot import BODY_BYTES, GROUPS, MEMBERS, PAGE, USERS
from bench.process import Server
from conclave.wire.negotiate import Format

ROUTES = ("/me", "/groups")
"""Of those that aiohttp answers."""


def main(out: BinaryIO) -> None:
    now = int(time.time())
    with tempfile.TemporaryDirectory(prefix="conclave-bench-") as folder:
        shape = stores.Shape(USERS, GROUPS, MEMBERS, body=os.urandom(BODY_BYTES))
        store = stores.build(Path(folder), "sql", now, shape, [now] * PAGE)
        with Server(store.config) as server:
            server.wait_for("cleanup_run")
            asked = {}
            sides = [(count, written) for count in (1, 16) for written in (Format.PROTOBUF, Format.JSON)]
            for count, written in sides:
                case = f"{count} {written.name.lower()}"
                asked[f"nothing new, {case}"] = requests.fetches(store, count, written, PAGE, PAGE)
                asked[f"page of {PAGE}, {case}"] = requests.fetches(store, count, written, 0, PAGE)
            for route in ROUTES:
                for count, written in sides:
                    users = range(0, USERS, USERS // count)
                    asked[f"{route}, {count} {written.name.lower()}"] = [
                        [requests.get(f"{requests.API}{route}", written, store.tokens[user])] for user in users
                    ]
            for count, written in sides:  # last: they are news to who asks for them
                asked[f"send, {count} {written.name.lower()}"] = requests.sends(store, count, written, BODY_BYTES)
            pickle.dump((int(server.url.rpartition(":")[2]), server.process.pid, asked), out)
            out.flush()
            sys.stdin.read()


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "wb") as own_output:
        os.dup2(2, 1)  # what the code logs, and its server, is not for the reader
        main(own_output)
