"""What one request may hold, and how much is said of one that holds more."""

import asyncio
import gzip
import json
import zlib
from typing import Any

import pytest

from conclave.errors import BadRequestError
from conclave.wire import formats
from conclave.wire.exchange import MAX_GZIP_MEMBERS
from tests.api.test_transport import JSON, ask
from tests.conftest import Running
from tests.support.client import PACKAGE, PASSWORD, Client, RefusedError, encode, expect
from tests.support.protobuf import PROTOBUF, ProtobufClient
from tests.support.server import PATIENCE

FORMATS = pytest.mark.parametrize("kind", [Client, ProtobufClient])
LAST_RESORT = {"data": encode(PACKAGE), "is_last_resort": True}


async def refusal(asked: Any) -> dict[str, Any]:
    with pytest.raises(RefusedError) as caught:
        await asked
    assert caught.value.status == 400
    return caught.value.body


@FORMATS
async def test_a_request_may_hold_100_key_packages_in_both_forms_together(running: Running, kind: type[Client]) -> None:
    alice = await kind.register(running.http, running.url, "alice")
    await alice.post("/key-packages", entries=[LAST_RESORT] * 100)
    await alice.post("/key-packages", entries=[LAST_RESORT] * 99, key_package_data=encode(PACKAGE))
    for body in (
        {"entries": [LAST_RESORT] * 101},
        {"entries": [LAST_RESORT] * 100, "key_package_data": encode(PACKAGE)},
    ):
        refused = await refusal(alice.post("/key-packages", **body))
        assert (refused["error_code"], refused["message"]) == (100, "entries: too many: at most 100")
    assert await running.query("SELECT count(*) FROM key_packages") == [(2,)]


@FORMATS
async def test_elements_of_a_list_that_is_too_long_are_not_looked_at(running: Running, kind: type[Client]) -> None:
    alice = await kind.register(running.http, running.url, "alice")
    refused = await refusal(alice.post("/key-packages", entries=[{"data": encode(b"no package")}] * 101))
    assert refused["message"] == "entries: too many: at most 100"


@FORMATS
async def test_an_invite_may_name_1000_users(running: Running, kind: type[Client]) -> None:
    alice = await kind.register(running.http, running.url, "alice")
    group = await alice.create_group("friends")
    path = f"/groups/{group}/invite"
    answer = await alice.post(path, user_ids=[alice.user_id] * 1_000)
    assert answer["member_key_packages"] == []
    refused = await refusal(alice.post(path, user_ids=[alice.user_id] * 1_001))
    assert (refused["error_code"], refused["message"]) == (100, "user_ids: too many: at most 1000")


@FORMATS
async def test_an_answer_names_20_faults_and_says_how_many_more_there_are(running: Running, kind: type[Client]) -> None:
    alice = await kind.register(running.http, running.url, "alice")
    refused = await refusal(alice.post("/key-packages", entries=[{"data": encode(b"none")}] * 50))
    named = refused["message"].split("; ")
    assert [each.partition(":")[0] for each in named[:-1]] == [f"entries.{number}.data" for number in range(20)]
    assert named[-1] == "and 30 more"
    assert len(refused.get("errors", range(20))) == 20
    refused = await refusal(alice.post("/key-packages", entries=[{"data": encode(b"none")}] * 20))
    assert "more" not in refused["message"]


@pytest.mark.parametrize(("count", "more"), [(20, ""), (21, "; and 1 more"), (4_500, "; and 4480 more")])
async def test_of_many_unknown_fields_20_are_named(running: Running, count: int, more: str) -> None:
    names = [f"field{number}" for number in range(count)]
    alice = await running.user("alice")
    refused = await refusal(alice.call("PATCH", "/me", json=dict.fromkeys(names, 1)))
    assert len(refused["errors"]) == 20
    assert set(refused["errors"]) <= set(names)
    assert refused["message"].endswith(more or "unknown field")


async def test_only_the_beginning_of_accept_counts(running: Running) -> None:
    for length, expected in ((2_000, "application/x-protobuf"), (2_048, "application/json")):
        headers = {"Accept": "a," * (length // 2) + "application/x-protobuf"}
        assert (await ask(running, "GET", "/api/v1/me", headers=headers))[2]["Content-Type"] == expected


async def test_a_long_name_is_not_repeated_whole(running: Running) -> None:
    alice = await running.user("alice")
    refused = await refusal(alice.call("PATCH", "/me", json={"n" * 1_000_000: 1}))
    assert refused["errors"] == {f"{'n' * 64}\N{HORIZONTAL ELLIPSIS}": ["unknown field"]}


async def test_an_unknown_field_is_refused_also_where_it_is_null(running: Running) -> None:
    alice = await running.user("alice")
    refused = await refusal(alice.call("PATCH", "/me", json={"alias": None, "mistyped": None}))
    assert (refused["error_code"], refused["errors"]) == (101, {"mistyped": ["unknown field"]})
    entry = {"data": encode(PACKAGE), "is_last_resort": None, "mistyped": None}
    refused = await refusal(alice.post("/key-packages", entries=[entry]))
    assert (refused["error_code"], refused["errors"]) == (101, {"entries.0.mistyped": ["unknown field"]})
    await alice.call("PATCH", "/me", json={"alias": None})


@pytest.mark.parametrize("value", ["[]", "{}", '""', "1", '{"a":[1,2]}', "[" * 400 + "]" * 400])
def test_a_body_of_very_many_values_is_refused_before_they_are_made(value: str) -> None:
    with pytest.raises(BadRequestError, match="more than 5000 values"):
        formats.parse(f'{{"a": [{",".join([value] * 11_000)}]}}'.encode())


@pytest.mark.parametrize("text", [",", "[{,", r"\",", r"\\", '"', '\\",[', "\u00e9,"])
def test_what_stands_in_a_text_is_no_value(text: str) -> None:
    value = {"a": text * 11_000, text: [text * 11_000]}
    assert formats.parse(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "body", ['{"', '"', '{"a\\', '{"a": "' + "\\" * 30_001 + '"}', '{"' + ',"' * 30_000, ",\\" * 9_999]
)
def test_what_is_no_json_is_refused_however_it_is_counted(body: str) -> None:
    with pytest.raises(BadRequestError):
        formats.parse(body.encode())


async def test_a_password_may_be_as_long_as_there_is_room(running: Running) -> None:
    alice = Client(running.http, running.url)
    for number, password in enumerate((",[{" * 100_000, '\\"' * 100_000)):
        await alice.post("/register", username=f"alice{number}", password=password)
        await alice.post("/login", username=f"alice{number}", password=password)
        await expect(alice.post("/login", username=f"alice{number}", password=password + "x"), 401, 202)


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        *(
            ("gzip", gzip.compress),
            ("Deflate", zlib.compress),
            ("identity", bytes),
            ("x-gzip, identity", gzip.compress),
        ),
        ("gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
        ("gzip", lambda data: gzip.compress(data) + gzip.compress(b"")),
        ("gzip", lambda data: b"".join(gzip.compress(data[at : at + 1]) for at in range(MAX_GZIP_MEMBERS))),
    ],
    ids=["gzip", "deflate", "identity", "a list", "two members", "an empty member", "many members"],
)
async def test_a_body_may_be_compressed(running: Running, encoding: str, packed: Any) -> None:
    await running.user("alice")
    data = packed(json.dumps({"username": "alice", "password": PASSWORD}).ljust(MAX_GZIP_MEMBERS).encode())
    headers = JSON | {"Content-Encoding": encoding}
    assert (await ask(running, "POST", "/api/v1/login", data=data, headers=headers))[0] == 200


@pytest.mark.parametrize(
    ("encoding", "data", "status"),
    [
        ("gzip", gzip.compress(b" " * 1_048_577), 413),
        ("gzip", gzip.compress(b" " * 1_048_576), 400),
        ("gzip", gzip.compress(b"{}")[:-1], 400),
        ("gzip", gzip.compress(b"{}") + b"{}", 400),
        ("gzip", gzip.compress(b"{}") + bytes(8), 400),
        ("gzip", gzip.compress(b"{}") + zlib.compress(b""), 400),
        ("gzip", gzip.compress(b"{}") + gzip.compress(b"")[:-1], 400),
        ("gzip", gzip.compress(b" " * 1_000_000) + gzip.compress(b" " * 48_577), 413),
        ("gzip", gzip.compress(b" " * 1_000_000) + gzip.compress(b" " * 48_576), 400),
        ("gzip", gzip.compress(b"") * (MAX_GZIP_MEMBERS + 1), 400),
        ("deflate", zlib.compress(b"{}") * 2, 400),
        ("deflate", b"{}", 400),
        ("br", b"{}", 415),
        ("gzip, gzip", gzip.compress(gzip.compress(b"{}")), 415),
    ],
    ids=[
        *("too much", "as much as may be", "cut short", "with more behind it", "with zeros behind it"),
        *("with zlib behind it", "a second one cut short", "too much in two", "as much as may be in two", "too many"),
        *("deflate twice", "not packed", "unknown", "packed twice"),
    ],
)
async def test_a_compressed_body_is_bounded_by_what_it_becomes(
    running: Running, encoding: str, data: bytes, status: int
) -> None:
    for kind in (JSON, PROTOBUF):
        headers = kind | {"Content-Encoding": encoding}
        answered, body, told = await ask(running, "POST", "/api/v1/login", data=data, headers=headers)
        assert (answered, body["error_code"]) == (status, 100)
        assert told.get("Accept-Encoding") == ("gzip, deflate" if status == 415 else None)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
async def test_an_empty_body_is_empty_however_it_is_compressed(running: Running, encoding: str) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    headers = JSON | {"Content-Encoding": encoding}
    path = f"/api/v1/groups/{group}/leave"
    assert (await ask(running, "POST", path, data=b"", headers=headers, token=alice.token))[0] == 200


async def test_codings_count_from_every_header(running: Running) -> None:
    body = gzip.compress(gzip.compress(b"{}"))
    head = "POST /api/v1/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    codings = "Content-Encoding: identity\r\nContent-Encoding: gzip\r\nContent-Encoding: gzip\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    writer.write(f"{head}{codings}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert (await asyncio.wait_for(reader.read(), PATIENCE)).startswith(b"HTTP/1.1 415 ")
    writer.close()
    await writer.wait_closed()
