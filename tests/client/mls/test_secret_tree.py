"""The bounds of the secret tree and of the ratchet tree."""

import pytest

from conclave.client.mls import InvalidError, LimitError, MalformedMessageError
from conclave.client.mls.codec import ByteReader, decode, uint32, varint
from conclave.client.mls.errors import ReplayedError
from conclave.client.mls.nodes import MAX_LEAVES
from conclave.client.mls.secret_tree import (
    MAX_AHEAD,
    MAX_GENERATION,
    MAX_SKIPPED,
    MAX_SKIPPED_TOGETHER,
    Ratchet,
    RatchetKind,
    SecretTree,
)
from conclave.client.mls.tree import RatchetTree
from tests.client.mls.forging import SUITE, package

APPLICATION = RatchetKind.APPLICATION
SECRET = bytes(SUITE.kdf.size)


def kept(tree: SecretTree) -> int:
    return sum(len(ratchet.skipped) for ratchet in tree.ratchets.values())


def test_keys_of_missing_messages_are_kept_up_to_a_bound_for_each_sender() -> None:
    ratchet = Ratchet(SECRET)
    for generation in (MAX_AHEAD, 2 * MAX_AHEAD):
        _, ratchet = ratchet.take(SUITE, generation)
    assert len(ratchet.skipped) == MAX_SKIPPED
    with pytest.raises(ReplayedError):
        ratchet.take(SUITE, 5)
    assert ratchet.take(SUITE, MAX_AHEAD + 5)[0].generation == MAX_AHEAD + 5
    with pytest.raises(LimitError):
        ratchet.take(SUITE, ratchet.generation + MAX_AHEAD + 1)


def test_keys_of_missing_messages_are_kept_up_to_a_bound_for_all() -> None:
    """Who has most of them loses the oldest; the others keep theirs."""
    tree = SecretTree.create(SUITE, 16, SECRET)
    _, tree = tree.take(0, APPLICATION, 10)
    for leaf_index in range(1, 11):
        _, tree = tree.take(leaf_index, APPLICATION, 1_000)
    assert kept(tree) == MAX_SKIPPED_TOGETHER
    assert len(tree.ratchets[0, APPLICATION].skipped) == 10
    assert tree.take(0, APPLICATION, 3)[0].generation == 3


def test_a_sender_has_as_many_keys_as_there_are_numbers() -> None:
    ratchet = Ratchet(SECRET, MAX_GENERATION)
    with pytest.raises(LimitError, match="used all its keys"):
        ratchet.next_key(SUITE)


def test_who_is_not_in_the_tree_has_no_keys() -> None:
    tree = SecretTree.create(SUITE, 4, SECRET)
    for leaf_index in (4, -1):
        with pytest.raises(InvalidError):
            tree.take(leaf_index, APPLICATION, 0)
    with pytest.raises(InvalidError, match="no keys of a member"):
        SecretTree(SUITE, 4, {}, {}).take(0, APPLICATION, 0)


@pytest.mark.parametrize("size", [0, 3, 2 * MAX_LEAVES])
def test_a_stored_tree_has_a_size_that_is_possible(size: int) -> None:
    with pytest.raises(MalformedMessageError, match="an invalid size"):
        decode(uint32(size) + bytes(2), lambda reader: SecretTree.decode(SUITE, reader))


def test_a_group_has_room_for_so_many_and_no_more() -> None:
    leaf = package("eve").key_package.leaf_node
    tree = RatchetTree(SUITE, (leaf,))
    while tree.size < MAX_LEAVES:
        tree = tree.extended()
    with pytest.raises(LimitError, match="room for"):
        tree.extended()


def test_a_length_is_at_most_what_can_be_said() -> None:
    assert decode(varint((1 << 30) - 1), ByteReader.varint) == (1 << 30) - 1
    with pytest.raises(LimitError, match="longer than the protocol allows"):
        varint(1 << 30)
