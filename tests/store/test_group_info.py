"""Which epoch a group info is of, as the store reads it: compared with how the client's MLS writes and reads one."""

import pytest
from hypothesis import example, given, strategies as st

from conclave.client.mls.codec import ByteReader, opaque, uint16, uint64
from conclave.client.mls.errors import MlsError
from conclave.store.resources.groups import Epoch, epoch_of, is_outdated

EPOCHS = st.integers(0, 2**64 - 1)


def written(mls_group: bytes, epoch: int, rest: bytes = b"", *, head: tuple[int, ...] = (1, 4, 1, 1)) -> bytes:
    return b"".join(map(uint16, head)) + opaque(mls_group) + uint64(epoch) + rest


def read(data: bytes) -> Epoch | None:
    """The same by the client's reader."""
    reader = ByteReader(data)
    try:
        version, wire_format, of_context, _ = (reader.uint16() for _ in range(4))
        found = Epoch(reader.opaque(), reader.uint64())
    except MlsError:
        return None
    return found if (version, wire_format, of_context) == (1, 4, 1) else None


@given(
    st.binary(max_size=70) | st.integers(16_380, 16_390).map(bytes),
    EPOCHS,
    st.binary(max_size=9),
    st.integers(0, 65_535),
)
def test_an_epoch_is_read_as_it_is_written(mls_group: bytes, epoch: int, rest: bytes, suite: int) -> None:
    whole = written(mls_group, epoch, rest, head=(1, 4, 1, suite))
    assert epoch_of(whole) == (mls_group, epoch)
    assert epoch_of(whole[: len(whole) - len(rest) - 1]) is None, "cut off within the epoch"


@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda tail: b"\0\1\0\4\0\1\0\1" + tail))
@example(b"\0\1\0\4\0\1\0\1\xc0" + bytes(20))
@example(b"\0\1\0\4\0\1\0\1\x40\x01" + bytes(20))
@example(b"")
def test_any_bytes_are_read_as_the_client_reads_them(data: bytes) -> None:
    assert epoch_of(data) == read(data)


@given(EPOCHS, EPOCHS, st.binary(max_size=8), st.binary(max_size=8), st.booleans())
def test_an_earlier_epoch_of_the_same_group_is_outdated_and_with_a_commit_the_same_epoch(
    one: int, two: int, first: bytes, second: bytes, with_commit: bool
) -> None:
    def outdated(group_info: bytes, by: bytes) -> bool:
        return is_outdated(group_info, by=by, with_commit=with_commit)

    assert outdated(written(first, one), written(first, two)) == (one < two or (with_commit and one == two))
    assert outdated(written(first, one), written(first, one)) == with_commit
    if first != second:
        assert not outdated(written(first, one), written(second, two))
    assert not outdated(b"group info", written(first, two))
    assert not outdated(written(first, one), b"group info")


@pytest.mark.parametrize("head", [(2, 4, 1, 1), (1, 3, 1, 1), (1, 5, 1, 1), (1, 4, 2, 1)])
def test_what_is_no_group_info_of_mls_has_no_epoch(head: tuple[int, ...]) -> None:
    assert epoch_of(written(b"group", 7, head=head)) is None
