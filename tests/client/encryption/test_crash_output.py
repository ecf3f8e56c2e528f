"""What a crash, a log or a debugger may show of the encryption: no key, no secret, and no text of a message."""

import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

import pytest

from conclave.client.encryption.codec import MlsCodec
from conclave.client.mls.key_schedule import EpochSecrets
from conclave.client.mls.suites import Aead, Kdf, KeyPair
from conclave.wire.results import FetchedMessage
from tests.client.encryption.devices import compared
from tests.client.encryption.test_files import LEAST, secrets

ALICE, BOB, GROUP = uuid4(), uuid4(), uuid4()
ROOT = Path(__file__).parents[3]
TEXT = "a text that no crash shows"


class Broken(BaseException):
    """What no code takes for anything else."""


class Watch:
    """Notes each secret that is derived, and how each value that any function of the client returns shows itself."""

    def __init__(self) -> None:
        self.secrets: set[bytes] = set()
        self.public: set[bytes] = set()  # derived as secrets are, to be compared aloud (RFC 9420 section 8.7)
        self.shown: dict[str, str] = {}

    def __enter__(self) -> "Watch":
        sys.setprofile(self._on)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _on(self, frame: FrameType, event: str, value: Any) -> None:
        if event != "return" or not str(frame.f_globals.get("__name__")).startswith("conclave.client."):
            return
        if frame.f_code in (Kdf.extract.__code__, Kdf.expand.__code__) and len(value or b"") >= LEAST:
            self.secrets.add(value)
        if isinstance(value, KeyPair):
            self.secrets.add(value.private)
        if isinstance(value, EpochSecrets):
            self.public.add(value.epoch_authenticator)
        for each in value if type(value) is tuple else (value,):
            if is_dataclass(each) or hasattr(each, "_fields"):
                self.shown[repr(each)] = type(each).__name__

    def shows(self, text: str) -> bool:
        """Tell whether a text has a secret."""
        forms = (form for each in self.secrets - self.public for form in (repr(each)[2:-1], each.hex()))
        return TEXT in text or any(form in text for form in forms)


def talk(alice: MlsCodec, bob: MlsCodec, watch: Watch) -> None:
    """Come together, change the keys, and send from either side."""
    alice.create(GROUP)
    package = bob.key_packages(1, last_resort=True).regular[0]
    change = alice.add(GROUP, BOB, package)
    alice.decode(GROUP, [FetchedMessage(1, ALICE, change.commit, 0)])
    bob.join_by_welcome(GROUP, change.welcome)
    bob.decode(GROUP, [FetchedMessage(1, ALICE, change.commit, 0)])
    compared(bob)
    number = 1
    for committer, its_id in ((alice, ALICE), (bob, BOB)):
        sent = [(its_id, committer.encode(GROUP, TEXT)), (its_id, committer.commit(GROUP).commit)]
        for sender, payload in sent:
            number += 1
            for each in (alice, bob):
                each.decode(GROUP, [FetchedMessage(number, sender, payload, 0)])
    for each in (alice, bob):
        record = each.record(GROUP)
        assert record is not None
        assert record.group is not None
        watch.secrets |= secrets(record.group)


def test_no_value_that_has_a_secret_or_a_text_shows_it() -> None:
    watch = Watch()
    with MlsCodec(None, ALICE) as alice, MlsCodec(None, BOB) as bob, watch:
        talk(alice, bob, watch)
    assert len(watch.secrets) > 100
    if watch.shows("\n".join(watch.shown)):
        pytest.fail(f"these show it: {sorted({kind for shown, kind in watch.shown.items() if watch.shows(shown)})}")
    kinds = set(watch.shown.values())
    assert {"GroupState", "EpochSecrets", "MessageKey", "OwnKeyPackage", "GroupSecrets", "Readable"} <= kinds


def fail_in_the_middle(folder: str, method: str) -> None:
    """Be a program that an error of its own ends while it encrypts or decrypts. Leave its secrets in a file."""
    with MlsCodec(Path(folder) / "alice", ALICE) as alice, MlsCodec(Path(folder) / "bob", BOB) as bob:
        with Watch() as watch:
            talk(alice, bob, watch)
            payload = alice.encode(GROUP, TEXT)

        def broken(self: Aead, key: bytes, nonce: bytes, aad: bytes, content: bytes) -> bytes:
            watch.secrets.update((key, nonce))
            (Path(folder) / "secrets").write_text("\n".join(each.hex() for each in watch.secrets))
            raise Broken("broken")  # what is an Exception is taken for a fault of the message

        setattr(Aead, method, broken)
        if method == "seal":
            alice.encode(GROUP, TEXT)
        else:
            bob.decode(GROUP, [FetchedMessage(99, ALICE, payload, 0)])


@pytest.mark.parametrize("method", ["seal", "open"])
def test_a_program_that_fails_while_it_encrypts_or_decrypts_prints_no_key_and_no_text(
    tmp_path: Path, method: str
) -> None:
    program = f"from {__name__} import fail_in_the_middle; fail_in_the_middle({str(tmp_path)!r}, {method!r})"
    ended = subprocess.run(
        [sys.executable, "-P", "-X", "dev", "-W", "ignore", "-c", program],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    printed = ended.stdout + ended.stderr
    assert ended.returncode == 1
    assert "Broken: broken" in printed, printed
    watch = Watch()
    watch.secrets = {bytes.fromhex(each) for each in (tmp_path / "secrets").read_text().split("\n")}
    assert len(watch.secrets) > 100
    assert not watch.shows(printed)
