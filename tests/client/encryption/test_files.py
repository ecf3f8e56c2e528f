"""The file with the keys: nobody else reads it, one program uses it, and nothing that was used up stays in it."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import fields, is_dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from conclave.client.encryption.codec import MlsCodec
from conclave.client.encryption.key_database import KeyStoreError
from conclave.client.encryption.texts import UNCONFIRMED_SECONDS
from conclave.client.mls import MlsGroup
from conclave.wire.results import FetchedMessage
from tests.client.encryption.devices import compared

ALICE, BOB, GROUP = uuid4(), uuid4(), uuid4()
LEAST = 24
"""Shorter values are no keys."""


def secrets(group: MlsGroup) -> set[bytes]:
    """All private keys and secrets of a state."""
    state = group._state
    found = {state.signature_private, *state.private_keys.values(), *state.updates.values()}
    found |= {each for one in state.pending for each in (one.leaf_private, one.path_secret)}
    for part in (state.secrets, state.secret_tree, *(each.secret_tree for each in state.past)):
        found |= set(values(part))
    found |= {each for past in state.past for each in (past.sender_data_secret, past.resumption_psk)}
    return {each for each in found if len(each) >= LEAST}


def values(part: object) -> Iterator[bytes]:
    """All bytes in a structure."""
    if isinstance(part, bytes):
        yield part
    elif isinstance(part, Mapping):
        for value in part.values():
            yield from values(value)
    elif isinstance(part, (tuple, list)):
        for value in part:
            yield from values(value)
    elif is_dataclass(part):
        for field in fields(part):
            if field.name != "suite":
                yield from values(getattr(part, field.name))


def held_by(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.iterdir())


def test_what_is_used_up_is_in_no_byte_of_the_file(tmp_path: Path) -> None:
    times = [1_800_000_000]
    alice, bob = MlsCodec(None, ALICE, now=lambda: times[-1]), MlsCodec(tmp_path / "keys", BOB, now=lambda: times[-1])
    alice.create(GROUP)
    batch = bob.key_packages(3, last_resort=True)
    ours = bob._own_keys.stored_packages()
    change = alice.add(GROUP, BOB, batch.regular[0])
    alice.decode(GROUP, [FetchedMessage(1, ALICE, change.commit, 0)])
    bob.join_by_welcome(GROUP, change.welcome)
    bob.decode(GROUP, [FetchedMessage(1, ALICE, change.commit, 0)])
    compared(bob)
    used = next(each for each in ours if each not in bob._own_keys.stored_packages())
    seen = {used.init_private, used.encryption_private}
    times.append(times[-1] + UNCONFIRMED_SECONDS)
    number = 1

    def note() -> None:
        record = bob.record(GROUP)
        assert record is not None
        assert record.group is not None
        seen.update(secrets(record.group))

    for turn in range(40):
        committer, its_id = (alice, ALICE) if turn % 3 else (bob, BOB)
        payloads = [(ALICE, alice.encode(GROUP, f"a secret text {turn}")), (BOB, bob.encode(GROUP, f"own text {turn}"))]
        note()
        payloads.append((its_id, committer.commit(GROUP).commit))
        note()
        for sender, payload in payloads:
            number += 1
            for each in (alice, bob):
                each.decode(GROUP, [FetchedMessage(number, sender, payload, 0)])
                each.record_stored(GROUP, number)
            note()
    record = bob.record(GROUP)
    assert record is not None
    assert record.group is not None
    kept = {each for own in bob._own_keys.stored_packages() for each in (own.init_private, own.encryption_private)}
    live = secrets(record.group) | kept
    dead = seen - live
    found = held_by(tmp_path)
    assert len(dead) > 200
    assert [each for each in dead if each in found] == []
    assert b"a secret text" not in found
    assert b"own text " not in found
    assert record.group._state.secrets.init_secret in found, "the search finds what is there"
    of_the_group = secrets(record.group) - {record.group._state.signature_private}
    bob.forget(GROUP)
    found = held_by(tmp_path)
    assert [each for each in of_the_group if each in found] == []
    bob.close()


def test_it_is_the_user_s_alone_and_one_program_s_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with MlsCodec(path, BOB) as codec:
        own = codec.fingerprint
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(KeyStoreError, match="another program uses these keys"):
            MlsCodec(path, BOB)
    with pytest.raises(KeyStoreError, match="another account"):
        MlsCodec(path, ALICE)
    with MlsCodec(path, BOB) as again:
        assert again.fingerprint == own


@pytest.mark.parametrize("content", [b"no database" * 100, b"SQLite format 3\0" + bytes(100)])
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(KeyStoreError):
        MlsCodec(path, BOB)
    assert path.read_bytes() == content


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    MlsCodec(path, BOB).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(KeyStoreError, match="its version is 9"):
        MlsCodec(path, BOB)


def test_keys_of_packages_go_when_they_can_be_of_no_use(tmp_path: Path) -> None:
    times = [1_800_000_000]
    with MlsCodec(tmp_path / "keys", BOB, now=lambda: times[-1]) as codec:

        def kept_after_a_month(regular: int, *, last_resort: bool) -> int:
            times.append(times[-1] + 31 * 86_400)
            assert codec.needs_key_packages
            codec.key_packages(regular, last_resort=last_resort)
            return len(codec._own_keys.stored_packages())

        codec.key_packages(5, last_resort=True)
        assert not codec.needs_key_packages
        old = codec._own_keys.stored_packages()
        assert kept_after_a_month(5, last_resort=True) == 12
        assert kept_after_a_month(1, last_resort=False) == 7
        found = held_by(tmp_path)
        assert not any(own.init_private in found or own.encryption_private in found for own in old)


def test_what_was_encrypted_and_never_came_goes_once_everything_was_read_after_a_restart(tmp_path: Path) -> None:
    times = [1_800_000_000]

    def opened() -> MlsCodec:
        return MlsCodec(tmp_path / "keys", BOB, now=lambda: times[-1])

    with opened() as codec:
        codec.create(GROUP)
        codec.record_caught_up(GROUP)
        payload = codec.encode(GROUP, "it came to the server")
        for text in ("it never left", "nor did this"):
            codec.encode(GROUP, text)
        codec.record_caught_up(GROUP)
        assert b"never left" in held_by(tmp_path), "it may be under way"
    times.append(times[-1] + 60)
    with opened() as codec:
        codec.record_caught_up(GROUP)
        assert b"never left" in held_by(tmp_path), "a slow link may still have it"
    times.append(times[-1] + 3 * 86_400)
    with opened() as codec:
        codec.record_caught_up(GROUP, has_all=False)
        assert b"never left" in held_by(tmp_path), "a server that does not know the time left something out"
        [found] = codec.decode(GROUP, [FetchedMessage(1, BOB, payload, 0)])
        assert found.text == "it came to the server"
        codec.record_stored(GROUP, 1)
        codec.encode(GROUP, "under way now")
        codec.record_caught_up(GROUP)
        found_bytes = held_by(tmp_path)
        assert b"under way now" in found_bytes
        assert [each for each in (b"never left", b"nor did this", b"came to the") if each in found_bytes] == []


def test_what_was_decrypted_and_went_before_the_history_had_it_goes_too(tmp_path: Path) -> None:
    """As after a crash between the two files, and an expiry before the next start: nobody asks for it again."""
    with MlsCodec(None, ALICE) as alice, MlsCodec(tmp_path / "keys", BOB) as bob:
        info = alice.create(GROUP).group_info
        joins = FetchedMessage(1, BOB, bob.join(GROUP, info).commit, 0)
        for each in (alice, bob):
            each.decode(GROUP, [joins])
        alice.record_caught_up(GROUP)
        [found] = bob.decode(GROUP, [FetchedMessage(2, ALICE, alice.encode(GROUP, "a secret text"), 0)])
        assert found.text == "a secret text"
    with MlsCodec(tmp_path / "keys", BOB) as bob:
        bob.record_stored(GROUP, 1)
        bob.record_caught_up(GROUP, has_all=False)
        assert b"a secret text" in held_by(tmp_path), "a server that does not know the time left something out"
        bob.record_caught_up(GROUP)
        assert b"a secret text" not in held_by(tmp_path)
