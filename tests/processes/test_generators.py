"""Clients that generators make of the OpenAPI document, and what they make of a server's answers."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.server import PATIENCE, ServerProcess

CLIENTS, MODELS = "openapi-python-client", "datamodel-codegen"

FOLDER = "CONCLAVE_GENERATORS"
"""The environment variable that names the folder of the generators' programs. Without it, PATH has them or not."""


@dataclass(frozen=True)
class Generators:
    """The programs, and what Python runs that has what the generated code needs."""

    clients: str
    models: str

    def run(self, *command: str | Path, within: Path) -> str:
        """Run a command and return what it has printed."""
        path = os.pathsep.join([str(Path(self.clients).parent), os.environ.get("PATH", "")])
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path}
        ran = subprocess.run(command, capture_output=True, text=True, cwd=within, env=env, timeout=PATIENCE)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def talk(self, script: str, *arguments: str, within: Path) -> list[str]:
        """Run a script that imports generated code from ``within``, and return its lines."""
        (within / "talk.py").write_text(script)
        python = Path(self.clients).parent / "python"
        return self.run(python, "talk.py", *arguments, within=within).splitlines()


@pytest.fixture(scope="module")
def generators() -> Generators:
    folder = os.environ.get(FOLDER)
    clients, models = (shutil.which(name, path=folder) for name in (CLIENTS, MODELS))
    if not clients or not models:
        assert not folder, f"{FOLDER} names a folder without {CLIENTS} and {MODELS}"
        pytest.skip(f"no {CLIENTS} and {MODELS}: make generators installs both and runs this")
    return Generators(clients, models)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), '[cleanup]\nengine = "sql"\n') as started:
        yield started


@pytest.fixture
def document(server: ServerProcess, tmp_path: Path) -> Path:
    """The document of the running server, as `?format=json` has it."""
    written = tmp_path / "openapi.json"
    with urlopen(f"{server.url}/api/v1/openapi.json?format=json") as answer:
        written.write_bytes(answer.read())
    return written


WITH_A_CLIENT = '''
"""Two users talk: calls and types are generated."""

import json
import sys
from base64 import b64decode, b64encode

from client import AuthenticatedClient, Client
from client import models as m
from client.api.accounts import accounts_login, accounts_logout, accounts_register
from client.api.groups import groups_create, groups_list_own, groups_update
from client.api.invites import invites_accept, invites_escrow, invites_list_own
from client.api.key_packages import key_packages_invite, key_packages_upload
from client.api.messages import messages_fetch, messages_send
from client.api.retention import retention_configuration, retention_policy
from client.api.users import users_by_name
from client.api.welcomes import welcomes_accept, welcomes_list_own

BYTES = bytes(range(256))
PACKAGE = b"\\x00\\x01\\x00\\x05" + BYTES
url = sys.argv[1]


def text(value):
    return b64encode(value).decode()


def done(answer):
    assert not isinstance(answer, m.ErrorResponse), answer
    return answer


users = {}
for name in ("una", "vera"):
    with Client(url) as stranger:
        done(accounts_register.sync(client=stranger, body=m.RegisterRequest(username=name, password="correct horse")))
        session = accounts_login.sync(client=stranger, body=m.LoginRequest(username=name, password="correct horse"))
        users[name] = AuthenticatedClient(url, token=done(session).token)
una, vera = users["una"], users["vera"]

entry = m.KeyPackageEntry(data=text(PACKAGE), is_last_resort=True)
done(key_packages_upload.sync(client=vera, body=m.UploadKeyPackageRequest(entries=[entry])))
group = done(groups_create.sync(client=una, body=m.CreateGroupRequest(group_name="choir"))).group_id
vera_id = done(users_by_name.sync("vera", client=una)).user_id
handed = done(key_packages_invite.sync(group, client=una, body=m.InviteToGroupRequest(user_ids=[vera_id])))
assert [b64decode(each.key_package_data) for each in handed.member_key_packages] == [PACKAGE]

with vera.get_httpx_client().stream("GET", "/api/v1/events") as stream:
    done(invites_escrow.sync(group, client=una, body=m.EscrowInviteRequest(
        invitee_id=vera_id, commit_message=text(b"commit"), welcome_message=text(BYTES), group_info=text(b"info"))))
    lines = (line for line in stream.iter_lines() if line.startswith(("event: ", "data: ")))
    pair = dict(line.split(": ", 1) for line in (next(lines), next(lines)))
    event = m.StreamedInviteReceived.from_dict({"event": pair["event"], "data": json.loads(pair["data"])})
    assert event.data.group_id == group
    print("heard", event.event)

[invite] = done(invites_list_own.sync(client=vera)).invites
done(invites_accept.sync(invite.invite_id, client=vera))
[welcome] = done(welcomes_list_own.sync(client=vera)).welcomes
assert b64decode(welcome.welcome_message) == BYTES
assert welcomes_accept.sync_detailed(welcome.welcome_id, client=vera).status_code == 204

changed = m.UpdateGroupRequest(message_expiry_seconds=3600, update_message_expiry=True, alias=None)
assert done(groups_update.sync(group, client=una, body=changed)).messages_expiring == 0
policy = done(retention_policy.sync(group, client=vera))
assert policy.policy_source is m.GetRetentionPolicyResponsePolicySource.GROUP, policy
done(retention_configuration.sync(client=vera))

sent = done(messages_send.sync(group, client=una, body=m.SendMessageRequest(mls_message=text(BYTES))))
got = done(messages_fetch.sync(group, client=vera)).messages
assert [b64decode(each.mls_message) for each in got] == [b"commit", BYTES]
assert got[-1].sequence_num == sent.sequence_num
[mine] = done(groups_list_own.sync(client=vera)).groups
assert {each.username for each in mine.members} == {"una", "vera"}
print("read", len(got))

refused = groups_update.sync(group, client=vera, body=changed)
assert refused.error_code is m.ErrorResponseErrorCode.GROUP_NOT_ADMIN
assert accounts_logout.sync_detailed(client=vera).status_code == 204
over = groups_list_own.sync(client=vera)
assert over.error_code is m.ErrorResponseErrorCode.AUTH_TOKEN_EXPIRED
print("refused", refused.error_code, over.error_code)
'''


def test_a_generated_client_talks_to_the_server(
    generators: Generators, server: ServerProcess, document: Path, tmp_path: Path
) -> None:
    """Without a warning: a generator that does not understand an operation leaves it out, and says so."""
    generators.run(
        *(generators.clients, "generate", "--path", document, "--fail-on-warning"),
        *("--meta", "none", "--output-path", tmp_path / "client"),
        within=tmp_path,
    )
    assert generators.talk(WITH_A_CLIENT, server.url, within=tmp_path) == [
        "heard invite_received",
        "read 2",
        "refused 401 202",
    ]


WITH_MODELS = '''
"""One user talks: types are generated, calls are made by hand."""

import sys
from base64 import b64decode, b64encode
from uuid import UUID

import httpx
import models as m
from pydantic import TypeAdapter, ValidationError

BYTES = bytes(range(256))
http = httpx.Client(base_url=f"{sys.argv[1]}/api/v1")


def post(path, body, answer):
    sent = body.model_dump_json(exclude_unset=True)
    got = http.post(path, content=sent, headers={"Content-Type": "application/json"})
    return answer.model_validate_json(got.content)


user = m.RegisterRequest(username="wanda", password="correct horse")
assert isinstance(post("/register", user, m.RegisterResponse).user_id, UUID)
token = post("/login", m.LoginRequest(username="wanda", password="correct horse"), m.LoginResponse).token
http.headers["Authorization"] = f"Bearer {token}"
group = post("/groups", m.CreateGroupRequest(group_name="quartet"), m.CreateGroupResponse).group_id

text = b64encode(BYTES).decode()
post(f"/groups/{group}/messages", m.SendMessageRequest(mls_message=text), m.SendMessageResponse)
[message] = m.GetMessagesResponse.model_validate_json(http.get(f"/groups/{group}/messages").content).messages
assert b64decode(message.mls_message) == BYTES
m.ListGroupsResponse.model_validate_json(http.get("/groups").content)
m.GetRetentionPolicyResponse.model_validate_json(http.get(f"/groups/{group}/retention").content)
print("read", message.sequence_num)

refused = post("/groups", m.CreateGroupRequest(group_name="quartet"), m.ErrorResponse)
assert refused.error_code is m.ErrorCode.RESOURCE_CONFLICT
try:
    m.SendMessageRequest(mls_message="no base64!")
except ValidationError:
    print("refused here and there")

data = {"group_id": str(group), "sequence_num": 1}
event = TypeAdapter(m.ServerEvent).validate_python({"event": "message_redacted", "data": data})
lagged = TypeAdapter(m.ServerEvent).validate_python({"event": "lagged", "data": 3})
print("heard", type(event.root).__name__, lagged.root.data)
'''


def test_generated_models_read_and_write_what_the_server_does(
    generators: Generators, server: ServerProcess, document: Path, tmp_path: Path
) -> None:
    generators.run(
        *(generators.models, "--input", document, "--input-file-type", "openapi"),
        *("--output", tmp_path / "models.py", "--output-model-type", "pydantic_v2.BaseModel"),
        within=tmp_path,
    )
    assert generators.talk(WITH_MODELS, server.url, within=tmp_path) == [
        "read 1",
        "refused here and there",
        "heard StreamedMessageRedacted 3",
    ]
