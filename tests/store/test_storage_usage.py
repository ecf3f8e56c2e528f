"""How much is stored, as quotas count it: in both tiers, each message once."""

from contextlib import closing

from conclave.actions.messages import append
from conclave.config.settings import Config
from conclave.keys.cipher import OVERHEAD_BYTES
from conclave.store.archive import restore
from conclave.store.archive.restore import ArchivedMessage
from conclave.store.engine import sqlite
from conclave.store.resources import groups, users
from conclave.store.views import storage_usage
from tests.support import stores
from tests.support.memberships import member_of


def test_a_message_of_the_archive_counts_once_while_a_copy_is_in_the_database_and_once_it_is_restored(
    config: Config,
) -> None:
    stores.prepare(config.database)
    with closing(sqlite.connect(config.database)) as connection:
        alice = users.add(connection, "alice", "", "", 1)
        group_id = groups.add(connection, alice, "friends", "", 1, Config().policy)
        member = member_of(connection, group_id, alice)
        for body in (b"1", b"22", b"333", b"4444"):
            append(connection, member, body, 1, is_commit=False)
        append(connection, member, b"a commit", 1, is_commit=True)
        key = member.group.group_key
        connection.execute("UPDATE groups SET archived_seq = 2")
        connection.execute("INSERT INTO archive_parts VALUES (?, -1, 0, 1, 2, 1, 1, 2, 3, 0)", (key,))
        assert storage_usage.of_group(connection, group_id, alice, bytes_too=True) == (5, 18)
        assert storage_usage.of_group(connection, group_id, alice, bytes_too=False) == (5, 0)
        assert storage_usage.of_user(connection, alice) == (4, 10)
        restore.switch_back(connection, key, 2)
        assert storage_usage.of_group(connection, group_id, alice, bytes_too=True) == (5, 18)
        assert storage_usage.of_group(connection, bytes(16), alice, bytes_too=True) is None
        bob = users.add(connection, "bob", "", "", 1)
        assert storage_usage.of_group(connection, group_id, bob, bytes_too=True) is None, (
            "outsiders have nothing counted"
        )


def test_a_message_that_comes_back_from_the_archive_counts_as_the_client_sent_it(config: Config) -> None:
    stores.prepare(config.database)
    with closing(sqlite.connect(config.database)) as connection:
        alice = users.add(connection, "alice", "", "", 1)
        group_id = groups.add(connection, alice, "friends", "", 1, Config().policy)
        key = member_of(connection, group_id, alice).group.group_key
        restore.store_copies(connection, key, [ArchivedMessage(1, alice, False, 1, bytes(7 + OVERHEAD_BYTES))])
        assert storage_usage.hot_bytes(connection, key) == 7
