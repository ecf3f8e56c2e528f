"""Members of a group as a churn moves them: those of this package, and the live peer of mls-rs."""

import json
import os
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any, Protocol

from conclave.client.mls import (
    ApplicationMessage,
    KeyPackage,
    MlsGroup,
    OwnCommit,
    OwnKeyPackage,
    Policy,
    create_key_package,
    decode_message,
    encode_message,
    suite_of,
)

NOW = int(time.time())
"""The peer goes by its own clock."""
TAKES = Policy(admit_new_members=True)


class Actor(Protocol):
    """Somebody who is in the group, or may come in. Messages are as they go over the wire."""

    name: str
    committed: bytes
    proposes_updates: bool

    def key_package(self) -> bytes: ...
    def create(self) -> None: ...
    def join(self, welcome: bytes) -> None: ...
    def external(self, group_info: bytes, *, resync: bool) -> bytes: ...
    def commit(self, add: list[bytes], remove: list[int], *, private: bool) -> tuple[bytes, bytes | None]: ...
    def propose(self, kind: str, key_package: bytes | None, index: int | None) -> bytes: ...
    def receive(self, message: bytes) -> None: ...
    def encrypt(self, data: bytes) -> bytes: ...
    def read(self, message: bytes) -> tuple[bytes, int]: ...
    def group_info(self) -> bytes: ...
    def index(self) -> int: ...
    def sight(self) -> tuple[int, bytes, bytes, list[int]]: ...
    def rest(self) -> None: ...
    def leave(self) -> None: ...


class Here:
    """A client of this package. Between any two calls its state is stored and loaded."""

    proposes_updates = True

    def __init__(self, number: int = 6, private: bytes | None = None) -> None:
        self.suite = suite_of(number)
        self.identity = uuid.uuid4().bytes
        self.name = f"here-{self.identity.hex()[:8]}"
        self.private = private or self.suite.signature_key_pair().private
        self.packages: list[OwnKeyPackage] = []
        self.group: MlsGroup | None = None
        self.commitment: OwnCommit | None = None
        self.committed = b""

    @property
    def held(self) -> MlsGroup:
        assert self.group is not None
        return self.group

    def own(self) -> OwnKeyPackage:
        return create_key_package(self.suite, self.identity, self.private, NOW)

    def key_package(self) -> bytes:
        self.packages.append(self.own())
        return encode_message(self.packages[-1].key_package)

    def create(self) -> None:
        self.group = MlsGroup.create(self.own(), NOW, group_id=os.urandom(16), policy=TAKES)

    def join(self, welcome: bytes) -> None:
        self.group, used = MlsGroup.join(welcome, self.packages, NOW, policy=TAKES)
        self.packages.remove(used)

    def external(self, group_info: bytes, *, resync: bool) -> bytes:
        self.group, message = MlsGroup.join_external(group_info, self.own(), NOW, resync=resync, policy=TAKES)
        return message

    def commit(self, add: list[bytes], remove: list[int], *, private: bool) -> tuple[bytes, bytes | None]:
        packages = [package for one in add if isinstance(package := decode_message(one), KeyPackage)]
        self.commitment = self.held.commit(NOW, add=packages, remove=remove, private=private)
        self.committed = self.commitment.message
        return self.commitment.message, self.commitment.welcome

    def propose(self, kind: str, key_package: bytes | None, index: int | None) -> bytes:
        if kind == "update":
            return self.held.propose_update(NOW)
        if kind == "remove":
            assert index is not None
            return self.held.propose_remove(index, NOW)
        assert key_package is not None
        package = decode_message(key_package)
        assert isinstance(package, KeyPackage)
        return self.held.propose_add(package, NOW)

    def receive(self, message: bytes) -> None:
        self.held.receive(message, NOW)

    def encrypt(self, data: bytes) -> bytes:
        return self.held.encrypt(data)

    def read(self, message: bytes) -> tuple[bytes, int]:
        got = self.held.receive(message, NOW)
        assert isinstance(got, ApplicationMessage)
        return got.data, got.sender.leaf_index

    def group_info(self) -> bytes:
        return self.held.group_info()

    def index(self) -> int:
        return self.held.own_index

    def sight(self) -> tuple[int, bytes, bytes, list[int]]:
        return self.held.epoch, self.held.epoch_authenticator, self.held.tree_hash, sorted(self.held.members())

    def rest(self) -> None:
        stored = self.held.to_bytes()
        self.group = MlsGroup.from_bytes(stored, TAKES)
        assert self.group.to_bytes() == stored

    def leave(self) -> None:
        assert self.group is not None
        assert not self.group.is_member
        self.group = None


class PeerProcess:
    """Clients made by others: one process for all of them, driven by lines of JSON."""

    def __init__(self, *command: Path | str) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, op: str, **fields: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **fields}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert answer["ok"], (op, answer)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=30)


class Peer:
    """A client of such a process."""

    def __init__(
        self, process: PeerProcess, identity: uuid.UUID | None = None, *, proposes_updates: bool = True
    ) -> None:
        self.proposes_updates = proposes_updates
        identity = identity or uuid.uuid4()
        self.name = f"peer-{identity.hex[:8]}"
        self._process = process
        self.committed = b""
        self.ask("new_client", uuid=str(identity))

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return self._process(op, client=self.name, **fields)

    def key_package(self) -> bytes:
        return bytes.fromhex(self.ask("key_package", time=NOW)["key_package"])

    def create(self) -> None:
        self.ask("create_group", time=NOW)

    def join(self, welcome: bytes) -> None:
        self.ask("join", welcome=welcome.hex(), time=NOW)

    def external(self, group_info: bytes, *, resync: bool) -> bytes:
        answer = self.ask("external_commit", group_info=group_info.hex(), resync=resync, time=NOW)
        return bytes.fromhex(answer["commit"])

    def commit(self, add: list[bytes], remove: list[int], *, private: bool) -> tuple[bytes, bytes | None]:
        packages = [one.hex() for one in add]
        answer = self.ask("commit", add=packages, remove=remove, private_handshake=private, single_welcome=True)
        welcome = answer["welcome"]
        self.committed = bytes.fromhex(answer["commit"])
        return self.committed, None if welcome is None else bytes.fromhex(welcome)

    def propose(self, kind: str, key_package: bytes | None, index: int | None) -> bytes:
        fields: dict[str, Any] = {} if key_package is None else {"key_package": key_package.hex()}
        if index is not None:
            fields["index"] = index
        return bytes.fromhex(self.ask("propose", kind=kind, **fields)["proposal"])

    def receive(self, message: bytes) -> None:
        self.ask("process", message=message.hex(), time=NOW)

    def encrypt(self, data: bytes) -> bytes:
        return bytes.fromhex(self.ask("encrypt", plaintext=data.hex())["message"])

    def read(self, message: bytes) -> tuple[bytes, int]:
        answer = self.ask("process", message=message.hex(), time=NOW)
        return bytes.fromhex(answer["plaintext"]), answer["sender"]

    def group_info(self) -> bytes:
        return bytes.fromhex(self.ask("group_info")["group_info"])

    def index(self) -> int:
        found: int = self.ask("info")["own_index"]
        return found

    def sight(self) -> tuple[int, bytes, bytes, list[int]]:
        info = self.ask("info")
        hashes = bytes.fromhex(info["epoch_authenticator"]), bytes.fromhex(info["tree_hash"])
        return info["epoch"], *hashes, sorted(member["index"] for member in info["members"])

    def rest(self) -> None:
        """Keep everything in memory."""

    def leave(self) -> None:
        self.ask("leave")
