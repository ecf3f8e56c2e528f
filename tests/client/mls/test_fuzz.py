"""Whatever comes, only this package's own errors come out, after a bounded number of steps."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from conclave.client.mls import MlsError, MlsGroup, OwnKeyPackage, decode_message
from conclave.client.mls.codec import MAX_ELEMENTS, MAX_MESSAGE, ByteReader, decode, opaque, varint
from conclave.client.mls.errors import InvalidError, LimitError, MalformedMessageError
from conclave.client.mls.framing import AuthenticatedContent
from conclave.client.mls.nodes import MAX_LEAVES
from conclave.client.mls.proposals import Commit, decode_proposal
from conclave.client.mls.tree import RatchetTree
from conclave.client.mls.welcome import GroupSecrets
from tests.client.mls.data import NOW, load, raw
from tests.client.mls.forging import SUITE, cast, package
from tests.support import sample

MESSAGES = [
    raw(vector[name])
    for vector in load("messages")[:6]
    for name in vector
    if name.startswith(("mls_", "public_", "private_"))
]
FOUR = cast()
EVE = package("eve")
STORED = FOUR.stored["alice"]
COUNT = sample.amount(1_000, 60)
MIB = 1 << 20

READERS: dict[str, Callable[[bytes], object]] = {
    "message": decode_message,
    "commit": lambda data: decode(data, Commit.decode),
    "proposal": lambda data: decode(data, decode_proposal),
    "secrets": lambda data: decode(data, GroupSecrets.decode),
    "tree": lambda data: decode(data, lambda reader: RatchetTree.decode(SUITE, reader)),
    "content": lambda data: decode(data, AuthenticatedContent.decode),
    "key package": OwnKeyPackage.from_bytes,
    "group": MlsGroup.from_bytes,
}


def mutated(bases: list[bytes]) -> st.SearchStrategy[bytes]:
    """Return valid messages with something cut out, put in or changed."""

    def change(base: bytes, start: float, length: int, new: bytes) -> bytes:
        at = int(start * len(base))
        return base[:at] + new + base[at + length :]

    return st.builds(change, st.sampled_from(bases), st.floats(0, 1), st.integers(0, 40), st.binary(max_size=12))


def takes(call: Callable[[], object]) -> None:
    with contextlib.suppress(MlsError):
        call()


@pytest.mark.parametrize("kind", READERS)
@settings(max_examples=COUNT, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_readers_raise_only_their_own_errors(kind: str, data: Any) -> None:
    bases = [STORED] if kind == "group" else [EVE.to_bytes()] if kind == "key package" else MESSAGES
    bytes_ = data.draw(st.one_of(st.binary(max_size=200), mutated(bases)))
    takes(lambda: READERS[kind](bytes_))


@settings(max_examples=COUNT, database=None)
@given(message=st.one_of(st.binary(max_size=100), mutated(MESSAGES)))
def test_a_group_survives_whatever_is_sent_to_it(message: bytes) -> None:
    group = FOUR.group("bob")
    takes(lambda: group.receive(message, NOW))
    takes(lambda: MlsGroup.join(message, [EVE], NOW))
    takes(lambda: MlsGroup.join_external(message, EVE, NOW))
    assert group.to_bytes() == FOUR.stored["bob"]


HEAD = bytes.fromhex("0001")
PUBLIC_COMMIT = bytes.fromhex("0001000100000000000000000001000000000003")
"""A public message of a member with an empty group id, up to its commit."""
LEAF = opaque(b"") * 2 + bytes.fromhex("0001") + opaque(b"") * 6 + b"\x02" + opaque(b"") * 2
BOMBS = {
    "zeros": bytes(MIB),
    "ones": b"\xff" * MIB,
    "a length and nothing": HEAD + b"\x00\x03\x00\x01" + varint(1 << 29),
    "welcomes": HEAD + bytes.fromhex("00030001") + opaque(bytes(3) * 300_000),
    "extensions": HEAD + bytes.fromhex("0004000100010000000000000000000000") + opaque(bytes(3) * 300_000),
    "proposals": PUBLIC_COMMIT + opaque(b"\x02\x00" * 500_000),
    "removes": PUBLIC_COMMIT + opaque(bytes.fromhex("01000300000001") * 140_000),
    "updates": PUBLIC_COMMIT + opaque((b"\x01\x00\x02" + LEAF) * 50_000),
    "ciphertexts": PUBLIC_COMMIT + b"\x00\x01" + LEAF + opaque((b"\x00" + opaque(bytes(2) * 4_000)) * 30),
    "nodes of a path": PUBLIC_COMMIT + b"\x00\x01" + LEAF + opaque(bytes(2) * 500_000),
    "capabilities": PUBLIC_COMMIT
    + opaque(b"\x01\x00\x02" + opaque(b"") * 2 + bytes.fromhex("000100") + opaque(bytes(2) * 500_000)),
    "certificates": PUBLIC_COMMIT
    + opaque(b"\x01\x00\x02" + opaque(b"") * 2 + bytes.fromhex("0002") + opaque(bytes(1) * MIB)),
}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the steps of readers."""
    steps = [0]
    fixed, short = ByteReader.fixed, ByteReader.opaque

    def counting(self: ByteReader, length: int) -> bytes:
        steps[0] += 1
        return fixed(self, length)

    def counting_short(self: ByteReader) -> bytes:
        steps[0] += 1
        return short(self)

    monkeypatch.setattr(ByteReader, "fixed", counting)
    monkeypatch.setattr(ByteReader, "opaque", counting_short)
    return steps


@pytest.mark.parametrize("name", BOMBS)
def test_a_mebibyte_of_anything_takes_few_steps(name: str, counted: list[int]) -> None:
    with pytest.raises((MalformedMessageError, LimitError)):
        decode_message(BOMBS[name])
    assert counted[0] < 10 * MAX_ELEMENTS


KEY = opaque(b"\x09" * SUITE.kem.size)
NODES = {
    "blank": b"\x00",
    "parent": b"\x01\x02" + KEY + opaque(b"") * 2,
    "leaf": b"\x01\x01" + KEY + LEAF.removeprefix(b"\x00") + b"\x00",
}


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_a_mebibyte_of_a_tree_takes_few_steps(node: bytes, counted: list[int]) -> None:
    with pytest.raises((MalformedMessageError, LimitError)):
        decode(opaque(node * (MIB // len(node))), lambda reader: RatchetTree.decode(SUITE, reader))
    assert counted[0] < 10 * MAX_ELEMENTS


def test_a_tree_of_the_smallest_nodes_is_refused_at_the_first(counted: list[int]) -> None:
    """Or a message has room for as many as a group may have, each with some entries of its own."""
    smallest = b"\x01\x01" + LEAF
    pair = smallest + b"\x01\x02" + opaque(b"") * 3
    tree = opaque(pair * (MAX_LEAVES - 1) + smallest)
    with pytest.raises(InvalidError, match="wrong length"):
        decode(tree, lambda reader: RatchetTree.decode(SUITE, reader))
    assert counted[0] < 100


def test_a_message_that_is_too_large_is_not_looked_at(counted: list[int]) -> None:
    with pytest.raises(LimitError, match="more than"):
        decode_message(bytes(MAX_MESSAGE + 1))
    assert counted[0] == 0


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("40", "ends too early"),
        ("4001aa", "not in the shortest form"),
        ("80000001aa", "not in the shortest form"),
        ("80003fff" + "aa" * 16_383, "not in the shortest form"),
        ("c0aa", "an invalid prefix"),
        ("ff", "an invalid prefix"),
        ("02aa", "ends too early"),
        ("01aabb", "trailing bytes"),
    ],
)
def test_a_length_is_as_short_as_it_can_be(data: str, sentence: str) -> None:
    with pytest.raises(MalformedMessageError, match=sentence):
        decode(raw(data), ByteReader.opaque)


def test_an_optional_value_is_there_or_not() -> None:
    with pytest.raises(MalformedMessageError, match="presence byte"):
        decode(b"\x02", lambda reader: reader.optional(ByteReader.uint8))


def test_numbers_end_where_their_vector_ends() -> None:
    with pytest.raises(MalformedMessageError, match="a truncated number"):
        decode(opaque(bytes(3)), ByteReader.uint16s)
    with pytest.raises(MalformedMessageError, match="ends too early"):
        decode(opaque(bytes(1)), lambda reader: reader.vector(ByteReader.uint16, 5))
    with pytest.raises(MalformedMessageError, match="longer than its message"):
        decode(b"\x05", lambda reader: reader.vector(ByteReader.uint16, 5))


def test_a_list_has_each_extension_once() -> None:
    context = bytes.fromhex("000100010000000000000000000000") + opaque(bytes.fromhex("f00d00") * 2)
    with pytest.raises(MalformedMessageError, match="two extensions of one type"):
        decode_message(HEAD + b"\x00\x04" + context)


def test_what_this_package_does_not_know_is_told_apart_from_what_it_does() -> None:
    for data, sentence in (
        ("00010009", "not a known WireFormat"),
        ("0001000100" + "00" * 8 + "09", "not a known SenderType"),
    ):
        with pytest.raises(MalformedMessageError, match=sentence):
            decode_message(raw(data))
    with pytest.raises(MalformedMessageError, match="proposals of type 9"):
        decode(raw("0009"), decode_proposal)


def test_a_list_of_numbers_has_a_bound() -> None:
    assert decode(opaque(bytes(20)), lambda reader: reader.uint16s(10)) == (0,) * 10
    with pytest.raises(LimitError, match="more than 10 numbers"):
        decode(opaque(bytes(22)), lambda reader: reader.uint16s(10))
