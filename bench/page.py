"""How long the operators' page takes with 10,000 groups: with a new look at the store, and with the last one."""

import time
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

from bench import stores
from bench.figures import Figure, spread
from bench.process import Server
from conclave.admin.page import snapshot

GROUPS, MEMBERS, MESSAGES = 10_000, 8, 4
EXPIRIES = (-1, 0, *(86_400 * days for days in range(1, 30)))
LOOKS, AGAIN = 7, 30


def whole(folder: Path) -> list[Figure]:
    """One in 31 of the groups deletes after the fetch; in all groups something has expired or will."""
    now = int(time.time())
    shape = stores.Shape(users=2_000, groups=GROUPS, members=MEMBERS, expiries=EXPIRIES)
    store = stores.build(folder, "sql", now, shape, [now - 86_400 * 10 * n for n in reversed(range(MESSAGES))])
    with Server(store.config) as server:
        url = f"{server.wait_for('listening')['admin_url']}/"
        server.wait_for("cleanup_run")
        new, again = [], []
        for _ in range(LOOKS):
            time.sleep(snapshot.FRESH_SECONDS * 4)
            new.append(_seconds(url))
            again += [_seconds(url) for _ in range(AGAIN // LOOKS)]
    what = f"the page, {GROUPS:,} groups of {MEMBERS}"
    return [
        spread(f"{what}, a new look", [each * 1000 for each in new], "ms", most=200),
        spread(f"{what}, the last look", [each * 1000 for each in again], "ms", most=200),
    ]


def _seconds(url: str) -> float:
    assert urlsplit(url).hostname == "127.0.0.1"
    began = time.monotonic()
    with urlopen(url) as answer:
        page = answer.read()
    took = time.monotonic() - began
    if b"10,000 groups" not in page:
        raise RuntimeError("the page does not show all groups")
    return took
