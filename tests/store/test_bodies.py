"""Bodies lie encrypted under keys of their own, those of messages in the order of their groups and numbers."""

import os
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from conclave.keys.tree import BLOCK
from conclave.store import bodies, message_keys
from conclave.store.engine import sqlite
from conclave.store.engine.connection import of_store
from conclave.store.engine.faults import StoreError, StoreFullError
from conclave.store.message_keys import OTHERS
from tests.support import stores
from tests.support.failpoints import SPACE_POINTS

GROUP = b"g" * 16


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    stores.prepare(tmp_path / "hot.db")
    with closing(sqlite.connect(tmp_path / "hot.db")) as opened:
        opened.execute(
            "INSERT INTO groups (group_key, group_id, group_name, alias, created_at) VALUES (7, ?, '', '', 0)", (GROUP,)
        )
        yield opened


def stored(connection: sqlite3.Connection, body_id: int) -> bytes:
    (found,) = connection.execute("SELECT body FROM bodies WHERE body_id = ?", (body_id,)).fetchone()
    assert isinstance(found, bytes)
    return found


def destroy_noted(connection: sqlite3.Connection) -> None:
    """Destroy the keys of what was erased, as a run does."""
    noted = message_keys.pending_erasures(connection)
    assert noted
    bodies.open_keys(connection).erase(noted.ranges)


def test_a_body_is_encrypted_and_its_key_goes_with_it(connection: sqlite3.Connection) -> None:
    ids = [bodies.put(connection, body) for body in (b"one" * 100, b"two" * 100)]
    assert bodies.get_many(connection, ids) == {ids[0]: b"one" * 100, ids[1]: b"two" * 100}
    assert bodies.sizes(connection, [*ids, 99]) == [300, 300, 0]
    before = stored(connection, ids[0])
    assert b"oneone" not in before
    bodies.erase(connection, ids[:1])
    destroy_noted(connection)
    assert bodies.get_many(connection, ids) == {ids[1]: b"two" * 100}
    connection.execute("INSERT INTO bodies VALUES (?, ?)", (ids[0], before))  # as an older copy has it
    assert bodies.get_many(connection, ids) == {ids[1]: b"two" * 100}


def test_a_body_that_is_replaced_stays_under_its_key(connection: sqlite3.Connection) -> None:
    body_id = bodies.put(connection, b"former")
    before = stored(connection, body_id)
    bodies.replace(connection, body_id, b"present")
    assert bodies.get(connection, body_id) == b"present"
    assert message_keys.pending_erasures(connection) is None
    connection.execute("UPDATE bodies SET body = ? WHERE body_id = ?", (before, body_id))
    assert bodies.get(connection, body_id) == b"former"


def test_an_altered_or_swapped_body_is_an_error(connection: sqlite3.Connection) -> None:
    one, two = (bodies.put(connection, body) for body in (b"one", b"two"))
    stores.add_message(connection, 7, 1, b"", 0)
    swapped, sound = stored(connection, two), stored(connection, one)
    for wrong in (swapped, sound[:-1] + bytes([sound[-1] ^ 1]), b""):
        connection.execute("UPDATE bodies SET body = ? WHERE body_id = ?", (wrong, one))
        with pytest.raises(StoreError, match="was altered"):
            bodies.get(connection, one)
    connection.execute("UPDATE message_bodies SET body = ?", (sound,))
    with pytest.raises(StoreError, match="was altered"):
        bodies.of_message(connection, 7, GROUP, 1)


def test_bodies_without_room_are_not_stored(connection: sqlite3.Connection) -> None:
    connection.room = 10  # type: ignore[attr-defined]
    bodies.put(connection, b"x" * 6)
    with pytest.raises(StoreFullError):
        bodies.put(connection, b"x" * 6)
    with bodies.extra_room(connection):
        bodies.put(connection, b"x" * 6)


@pytest.mark.parametrize("seed", range(3))
def test_messages_are_read_together_as_they_are_one_by_one(connection: sqlite3.Connection, seed: int) -> None:
    chance = random.Random(seed)
    texts = {number: chance.randbytes(chance.choice([0, 1, 60, 5_000])) for number in range(1, 200)}
    for number in chance.sample(sorted(texts), len(texts)):
        stores.add_message(connection, 7, number, b"", 0, body=texts[number])
    for _ in range(30):
        first, last = sorted(chance.sample(range(1, 200), 2))
        chosen = [number for number in range(first, last) if chance.random() < chance.choice([0.3, 1])]
        ids = [bodies.message_id(7, number) for number in chosen]
        opened = bodies.decrypt(connection, GROUP, chosen, bodies.of_messages(connection, ids))
        assert opened == [texts[number] for number in chosen]
    bodies.delete_of_messages(connection, [bodies.message_id(7, number) for number in texts])
    assert connection.execute("SELECT count(*) FROM message_bodies").fetchone()[0] == 0


def test_a_message_without_its_body_is_a_fault_of_the_store(connection: sqlite3.Connection) -> None:
    for number in (1, 2, 3):
        stores.add_message(connection, 7, number, b"", 0)
    ids = [bodies.message_id(7, number) for number in (1, 2, 3)]
    for gone in (ids[1:2], ids):
        connection.executemany("DELETE FROM message_bodies WHERE message_id = ?", [(each,) for each in gone])
        with pytest.raises(StoreError, match="messages have no body"):
            bodies.of_messages(connection, ids)


def test_a_number_that_an_older_copy_gives_again_has_a_key(connection: sqlite3.Connection) -> None:
    erased = [bodies.put(connection, b"x") for _ in range(3)]
    bodies.erase(connection, erased)
    destroy_noted(connection)
    connection.execute("UPDATE sqlite_sequence SET seq = 0 WHERE name = 'bodies'")
    again = bodies.put(connection, b"again")
    assert again == BLOCK
    assert bodies.get(connection, again) == b"again"


def test_pages_go_back_to_the_file_system_while_a_fifth_is_free(connection: sqlite3.Connection) -> None:
    for number in range(1, 200):
        stores.add_message(connection, 7, number, b"", 0, body=bytes(4_000))

    def free_share() -> float:
        free, total = (connection.execute(f"PRAGMA {each}").fetchone()[0] for each in ("freelist_count", "page_count"))
        return float(free / total)

    def step() -> bool:
        with sqlite.write_transaction(connection):
            return bodies.return_free_pages(connection)

    bodies.delete_of_messages(connection, [bodies.message_id(7, number) for number in range(1, 20)])
    before = free_share()
    assert not step()
    assert free_share() == before, "few pages are used again"
    bodies.delete_of_messages(connection, [bodies.message_id(7, number) for number in range(20, 150)])
    assert free_share() > 0.4
    while step():
        pass
    assert 0.15 < free_share() <= 0.2


def test_what_an_undone_transaction_drew_is_noted_by_the_next_one(connection: sqlite3.Connection) -> None:
    """Or a key file that lacks it would not be known to be older than the database."""
    keys = of_store(connection).keys = bodies.open_keys(connection)
    with suppress(ZeroDivisionError), sqlite.write_transaction(connection):
        bodies.put(connection, b"undone")
        raise ZeroDivisionError
    with sqlite.write_transaction(connection):
        kept = bodies.put(connection, b"kept")
    state = message_keys.state(connection)
    assert state is not None
    assert state.serial == keys.serial > 0
    assert bodies.get(connection, kept) == b"kept"


RETURN = """
import sys
from contextlib import closing, suppress
from pathlib import Path
from conclave.store import bodies
from conclave.store.engine import sqlite
from conclave.store.engine.connection import of_store
with closing(sqlite.connect(Path(sys.argv[1]))) as connection, sqlite.write_transaction(connection):
    bodies.return_free_pages(connection)
"""


@pytest.mark.parametrize("point", SPACE_POINTS)
def test_killed_while_pages_go_back_the_file_is_whole(
    connection: sqlite3.Connection, tmp_path: Path, point: str
) -> None:
    for number in range(1, 100):
        stores.add_message(connection, 7, number, b"", 0, body=b"%d" % number * 1_000)
    bodies.delete_of_messages(connection, [bodies.message_id(7, number) for number in range(1, 90)])
    env = os.environ | {"CONCLAVE_FAILPOINT": f"{point}=kill"}
    done = subprocess.run([sys.executable, "-P", "-c", RETURN, tmp_path / "hot.db"], env=env)
    assert done.returncode == -9, f"{point} was not reached"
    assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    ids = [bodies.message_id(7, number) for number in range(90, 100)]
    found = bodies.decrypt(connection, GROUP, range(90, 100), bodies.of_messages(connection, ids))
    assert found == [b"%d" % number * 1_000 for number in range(90, 100)]


def test_every_column_that_refers_to_a_body_is_known(connection: sqlite3.Connection) -> None:
    schema = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall()
    found = {(name, column) for name, sql in schema for column in re.findall(r"\b(\w+_body)\b INTEGER", sql)}
    known = {(table, column) for table, columns in bodies.REFERENCES for column in columns}
    assert found == known | {("groups", "group_info_body")}
    assert bytes(16) == OTHERS
