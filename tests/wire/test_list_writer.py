"""Lists that are written in parts are the messages that they would be at once."""

import json
from typing import Any

import pytest

from conclave.errors import UnavailableError
from conclave.store.resources.members import MemberRow
from conclave.wire import conclave_pb2, results
from conclave.wire.formats import Format
from conclave.wire.lists import ListWriter, LongBytes, LongList, padding

both = pytest.mark.parametrize("written_in", Format)
GROUP: dict[str, Any] = {
    "group_id": bytes(16),
    "alias": '"members":[] \\"members":[]',
    "members": [],
    "group_name": "club",
    "mls_group_id": "",
    "message_expiry_seconds": -1,
    "visibility": "public",
}
MEMBERS = [MemberRow(bytes([number]) * 16, f"user{number}", "\u00e4" * number, "", "member") for number in range(60)]


def groups(written_in: Format, text: bytes) -> list[tuple[str, list[str]]]:
    """Return the aliases of groups, and the names of their members."""
    if written_in is Format.JSON:
        found = json.loads(text)["groups"]
        return [(each["alias"], [member["username"] for member in each["members"]]) for each in found]
    read = conclave_pb2.ListGroupsResponse.FromString(text).groups
    return [(each.alias, [member.username for member in each.members]) for each in read]


@pytest.mark.parametrize("size", [*range(3, 600), 10_000, 100_001])
def test_padding_has_its_size_and_is_passed_over(size: int) -> None:
    padded = padding(size)
    assert len(padded) == size
    message = conclave_pb2.GroupInfo(alias="x").SerializeToString()
    assert conclave_pb2.GroupInfo.FromString(padded + message).alias == "x"
    assert "members" not in str(conclave_pb2.GroupInfo.FromString(padded))


@both
@pytest.mark.parametrize("spare", [0, 1, 2, 100, 126, 4_000])
def test_a_long_item_stands_among_others(written_in: Format, spare: int) -> None:
    size = len(conclave_pb2.GroupInfo(members=map(_in_protobuf, MEMBERS)).SerializeToString())
    outer = ListWriter(written_in, results.GroupList)
    text = outer.begin() + outer.items([GROUP | {"alias": "first"}])
    for _ in range(2):
        long = LongList(outer, results.GroupDetails, GROUP, "members", size + spare)
        text += long.begin() + long.items(MEMBERS[:1]) + long.items([]) + long.items(MEMBERS[1:]) + long.end()
    text += outer.items([GROUP, GROUP]) + outer.end(more=True)
    names = [each.username for each in MEMBERS]
    expected = [("first", []), *[(GROUP["alias"], names)] * 2, *[(GROUP["alias"], [])] * 2]
    assert groups(written_in, text) == expected
    if written_in is Format.JSON:
        assert json.loads(text)["more"] is True
    else:
        assert conclave_pb2.ListGroupsResponse.FromString(text).more


def test_an_item_that_outgrows_its_length_is_refused() -> None:
    size = len(conclave_pb2.GroupInfo(members=map(_in_protobuf, MEMBERS)).SerializeToString())
    long = LongList(ListWriter(Format.PROTOBUF, results.GroupList), results.GroupDetails, GROUP, "members", size - 1)
    long.items(MEMBERS[:-1])
    with pytest.raises(UnavailableError):
        long.items(MEMBERS[-1:])


@both
@pytest.mark.parametrize("size", [0, 1, 3, 127, 128, 20_000])
def test_a_long_body_is_the_whole_of_its_parts(written_in: Format, size: int) -> None:
    welcome = {"group_id": bytes(16), "group_alias": '"welcome_message":""', "welcome_message": b"", "welcome_id": b""}
    body = bytes(number % 251 for number in range(size))
    outer = ListWriter(written_in, results.WelcomeList)
    long = LongBytes(outer, results.WelcomeInfo, welcome, "welcome_message", size)
    parts = [long.part(body[at : at + 3_000]) for at in range(0, size, 3_000)]
    text = outer.begin() + long.begin() + b"".join(parts) + long.end() + outer.items([welcome]) + outer.end(more=False)
    at_once = ListWriter(written_in, results.WelcomeList)
    items = [welcome | {"welcome_message": body}, welcome]
    expected = at_once.begin() + at_once.items(items) + at_once.end(more=False)
    if written_in is Format.JSON:
        assert json.loads(text) == json.loads(expected)
    else:
        read = conclave_pb2.ListPendingWelcomesResponse.FromString
        assert read(text) == read(expected)


def _in_protobuf(member: MemberRow) -> conclave_pb2.GroupMember:
    return conclave_pb2.GroupMember(
        user_id=member.user_id, username=member.username, alias=member.alias, role=conclave_pb2.GROUP_ROLE_MEMBER
    )
