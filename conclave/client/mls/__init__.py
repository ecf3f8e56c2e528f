"""MLS, the protocol of RFC 9420, over the primitives of ``cryptography``. It imports no other module of Conclave."""

from conclave.client.mls.credentials import Credential, Extension, basic
from conclave.client.mls.crypto import fingerprint
from conclave.client.mls.errors import (
    ForgedError,
    InvalidError,
    LimitError,
    MalformedMessageError,
    MlsError,
    OutdatedStateError,
    OwnMessageError,
    ReplayedError,
    StaleError,
    StateError,
    WrongRecipientError,
)
from conclave.client.mls.framing import decode_message, encode_message
from conclave.client.mls.group import MlsGroup, OwnCommit
from conclave.client.mls.key_packages import KeyPackage, OwnKeyPackage, create_key_package
from conclave.client.mls.receiving import ApplicationMessage, CommitApplied, ProposalArrived, Received
from conclave.client.mls.state import MlsMember
from conclave.client.mls.suites import SUITES, CipherSuite, suite_of
from conclave.client.mls.validation import Policy

__all__ = [
    "SUITES",
    "ApplicationMessage",
    "CipherSuite",
    "CommitApplied",
    "Credential",
    "Extension",
    "ForgedError",
    "InvalidError",
    "KeyPackage",
    "LimitError",
    "MalformedMessageError",
    "MlsError",
    "MlsGroup",
    "MlsMember",
    "OutdatedStateError",
    "OwnCommit",
    "OwnKeyPackage",
    "OwnMessageError",
    "Policy",
    "ProposalArrived",
    "Received",
    "ReplayedError",
    "StaleError",
    "StateError",
    "WrongRecipientError",
    "basic",
    "create_key_package",
    "decode_message",
    "encode_message",
    "fingerprint",
    "suite_of",
]
