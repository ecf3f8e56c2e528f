"""What cleanup erases while it is read from the archive is left out, and never handed out as it lies there."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from conclave.archive.reader import Archive
from conclave.health.parts import Health
from conclave.keys.store import LAST_NUMBER, KeyStore
from conclave.keys.tree import Range
from conclave.store import bodies
from conclave.store.archive import moves
from tests.support.keyed import KeyedBackups


@pytest.fixture
def store(tmp_path: Path) -> KeyedBackups:
    made = KeyedBackups(tmp_path)
    made.begin_keys()
    return made


def erase(store: KeyedBackups, key: int, keys: KeyStore, last: int) -> None:
    """Do what a run does: the table first, then the index, then the keys."""
    store.mover.delete(f"group_key = {key}")
    with store.opened() as connection:
        moves.note_version(connection, store.mover.version())
        moves.replace_parts(connection, key, {(key, p.lifetime, p.span): None for p in moves.parts(connection, key)})
    keys.erase([(store.group_ids[key], [Range(0, last)])])
    keys.erase([(store.group_ids[key], [Range(0, LAST_NUMBER)])])  # as of a group that gives no numbers any more


@pytest.mark.parametrize("is_erased", [False, True])
async def test_messages_whose_block_loses_all_keys_while_they_are_read_are_left_out(
    store: KeyedBackups, monkeypatch: pytest.MonkeyPatch, *, is_erased: bool
) -> None:
    group = store.add_group()
    store.send(group, 3)
    store.move(group, 3)
    stretch, opened = store.stretch(group), bodies.decrypt_archived
    with closing(KeyStore(store.config.keys_path)) as keys, closing(KeyStore(store.config.keys_path)) as of_run:

        def after_a_run(*args: Any) -> Sequence[bytes | None]:
            with monkeypatch.context() as patch:
                patch.setattr(bodies, "decrypt_archived", opened)
                if is_erased and store.query("SELECT count(*) FROM archive_parts") == [(1,)]:
                    erase(store, group, of_run, 3)
            return opened(*args)

        archive = Archive(store.config.archive_path, store.config.database, Health(), keys)
        monkeypatch.setattr(bodies, "decrypt_archived", after_a_run)
        found = await archive.read(stretch, 10)
        await archive.close()
    sent = [store.search.body(store.made[group, number], 300) for number in (1, 2, 3)]
    assert [each.mls_message for each in found.messages] == ([] if is_erased else sent)
