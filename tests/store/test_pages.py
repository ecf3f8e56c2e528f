"""Pages of the hot store: how much of what a reader may see is in one."""

import random
import sqlite3
from contextlib import closing
from itertools import accumulate
from pathlib import Path

import pytest

from conclave.actions.messages import append
from conclave.clock import FakeClock
from conclave.retention.policy import KEEP
from conclave.retention.resolve import PolicySettings
from conclave.store.engine import sqlite
from conclave.store.resources import groups, messages, state, users
from conclave.wire import page_writer
from conclave.wire.conclave_pb2 import GetMessagesResponse
from conclave.wire.formats import Format
from tests.support import stores
from tests.support.memberships import member_of

NOW = 1_700_000_000
POLICY = PolicySettings(KEEP, 2_592_000, 604_800)


@pytest.mark.parametrize("seed", range(5))
def test_a_page_has_the_first_messages_that_fit_whatever_their_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(messages, "PAGE_BYTES", 5_000)
    chance = random.Random(seed)
    stored = [chance.randbytes(chance.choice([1, 20, 20, 20, 150, 900, 4_000, 6_000])) for _ in range(120)]
    stores.prepare(tmp_path / "hot.db")
    with closing(sqlite.connect(tmp_path / "hot.db")) as connection, sqlite.write_transaction(connection):
        state.begin_serving(connection, POLICY, FakeClock(NOW).read())
        user_id = users.add(connection, "alice", "", "", 0)
        group_id = groups.add(connection, user_id, "group", "", 0, POLICY)
        member = member_of(connection, group_id, user_id)
        for body in stored:
            append(connection, member, body, NOW, is_commit=False)
        kinds = set()
        for _ in range(300):
            after, limit = chance.randrange(120), chance.randint(1, 40)
            asked = [len(body) for body in stored[after : after + limit]]
            fitting = sum(total <= messages.PAGE_BYTES for total in accumulate(asked))
            found = _page(connection, group_id, user_id, after, limit)
            assert found == stored[after : after + max(1, fitting)]
            kinds.add((fitting, fitting < len(asked), max(asked) > 5_000 // len(asked)))
        assert len(kinds) > 4, "whole and shortened, of small and of large bodies, alike and mixed"


def _page(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, after: int, limit: int) -> list[bytes]:
    """The bodies of a page."""
    write = page_writer.message_writer(Format.PROTOBUF)
    page = messages.read_page(connection, group_id, user_id, after, limit, FakeClock(NOW), write)
    found = GetMessagesResponse.FromString(b"".join(each.piece for each in page.messages))
    return [each.mls_message for each in found.messages]
