"""What the store avoids, done on purpose: rows of bodies deleted one by one. The proof sees what is left of them."""

import random
from pathlib import Path

from conclave.proof.findings import Kind
from conclave.store import bodies
from conclave.store.engine import sqlite
from tests.proof.stores import Bodies

COUNT = 20_000


def test_stale_copies_that_sqlite_leaves_are_found_wherever_the_search_finds_them(tmp_path: Path) -> None:
    """SQLite merges half-empty pages then, and leaves pieces of bodies in their middle."""
    chance = random.Random(3)
    store = Bodies(tmp_path, 0)
    with store.opened() as connection, sqlite.write_transaction(connection):
        for number in range(COUNT):
            body_id = bodies.put(connection, store.search.body(number, chance.randint(24, 400)))
            connection.execute("INSERT INTO messages VALUES (?, 1, ?, x'00', 0, 0)", (body_id, number))
            store.ids.append(body_id)
    deleted: set[int] = set()
    with store.opened() as connection:
        for _ in range(4):
            living = [number for number in range(COUNT) if number not in deleted]
            deleted |= set(chance.sample(living, len(living) // 4))
            with sqlite.write_transaction(connection):
                for number in sorted(deleted):
                    connection.execute("DELETE FROM messages WHERE message_id = ?", (store.ids[number],))
                    connection.execute("DELETE FROM body_segment_1 WHERE body_id = ?", (store.ids[number],))
        sqlite.truncate_wal(connection)
    data = store.path.read_bytes()
    left = {
        place // 4096 + 1
        for place in range(0, len(data), 4096)
        if store.search._numbers_in(data[place : place + 4096]) & deleted
    }
    found = store.examine()["body segments"].findings
    assert left, "otherwise nothing is tried here"
    assert left <= {each.page for each in found if each.kind == Kind.REMAINS}
