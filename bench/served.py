"""Serves a store of 128 users until its input ends, for ``bench.in_turn``: run by a checkout's own Python, in it.

The output is the server's port and process, and what to ask of it, pickled. With ``random-pages`` the store has 400,000
messages in 40 groups, and each request begins at a random number: the memory of responses answers next to none. It uses
no more of ``bench`` than former versions have.
"""

import os
import pickle
import random
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

sys.path.insert(0, str(Path.cwd()))

from bench import requests, stores
from bench.hot import BODY_BYTES, GROUPS, MEMBERS, PAGE, USERS
from bench.process import Server
from bench.requests import Format

ROUTES = ("/me", "/groups")
"""Of those that aiohttp answers."""


RANDOM_GROUPS, RANDOM_MESSAGES, RANDOM_REQUESTS = 40, 10_000, 40_000
"""Of each of 40 groups 10,000 messages; 40,000 requests in each case."""

Requests = dict[str, list[list[bytes]]]


def main(out: BinaryIO, *, is_random: bool) -> None:
    now = int(time.time())
    groups, messages = (RANDOM_GROUPS, RANDOM_MESSAGES) if is_random else (GROUPS, PAGE)
    with tempfile.TemporaryDirectory(prefix="conclave-bench-") as folder:
        shape = stores.Shape(USERS, groups, MEMBERS, body=os.urandom(BODY_BYTES))
        store = stores.build(Path(folder), "sql", now, shape, [now] * messages)
        if is_random:
            _have_all_fetched(store)  # or each request would raise a watermark, too
        with Server(store.config) as server:
            server.wait_for("cleanup_run")
            asked = _random_pages(store) if is_random else _hot_paths(store)
            pickle.dump((int(server.url.rpartition(":")[2]), server.process.pid, asked), out)
            out.flush()
            sys.stdin.read()


def _hot_paths(store: stores.Store) -> Requests:
    asked: Requests = {}
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
    sides += [(count, Format.PROTOBUF) for count in (64, USERS)]
    for count, written in sides:  # last: they are news to who asks for them
        asked[f"send, {count} {written.name.lower()}"] = requests.sends(store, count, written, BODY_BYTES)
    return asked


def _random_pages(store: stores.Store) -> Requests:
    asked: Requests = {}
    for count in (1, 16):
        for written in (Format.PROTOBUF, Format.JSON):
            asked[f"random page of {PAGE}, {count} {written.name.lower()}"] = [
                [
                    requests.fetch(store, user, group, written, random.randrange(RANDOM_MESSAGES - PAGE), PAGE)
                    for group in random.choices(store.groups_of[user], k=RANDOM_REQUESTS // count)
                ]
                for user in _readers(store, count)
            ]
    return asked


def _have_all_fetched(store: stores.Store) -> None:
    with closing(sqlite3.connect(store.config.database)) as connection, connection:
        connection.execute(
            "UPDATE members SET watermark = (SELECT last_seq FROM groups WHERE group_key = members.group_key)"
        )


def _readers(store: stores.Store, count: int) -> list[int]:
    """Users who are in a group, a connection each."""
    return [user for user, groups in enumerate(store.groups_of) if groups][:count]


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "wb") as own_output:
        os.dup2(2, 1)  # what the code logs, and its server, is not for the reader
        main(own_output, is_random="random-pages" in sys.argv)
