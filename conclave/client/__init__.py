"""The client library, for programs that talk to a Conclave server. Of the server it imports the wire formats only."""

from conclave.client.api import Client
from conclave.client.codec import Change, Codec, PlaintextCodec, Readable
from conclave.client.encryption.codec import MlsCodec
from conclave.client.encryption.vault import KeyStoreError
from conclave.client.errors import (
    AnswerError,
    AnswerTooLongError,
    AuthError,
    BusyError,
    ClientError,
    DiskError,
    EncryptionError,
    GroupError,
    InputError,
    KeyInDoubtError,
    NoAnswerError,
    NotReadyError,
    RefusedError,
    ReplacedError,
    ResourceError,
    ServerError,
    SessionOverError,
    WrongPasswordError,
)
from conclave.client.events import (
    EncryptionChanged,
    EncryptionNotice,
    GroupGone,
    KeyChanged,
    Message,
    MessageArrived,
    MessagesGone,
    News,
    Offline,
    Online,
    PolicyChanged,
    TimeCorrected,
)
from conclave.client.history.schema import HistoryError
from conclave.client.history.store import History
from conclave.client.retry import Backoff
from conclave.client.session import Session, SessionFileError
from conclave.client.sync import Sync
from conclave.client.transport import Timeouts
from conclave.wire.negotiate import Format

__all__ = [
    "AnswerError",
    "AnswerTooLongError",
    "AuthError",
    "Backoff",
    "BusyError",
    "Change",
    "Client",
    "ClientError",
    "Codec",
    "DiskError",
    "EncryptionChanged",
    "EncryptionError",
    "EncryptionNotice",
    "Format",
    "GroupError",
    "GroupGone",
    "History",
    "HistoryError",
    "InputError",
    "KeyChanged",
    "KeyInDoubtError",
    "KeyStoreError",
    "Message",
    "MessageArrived",
    "MessagesGone",
    "MlsCodec",
    "News",
    "NoAnswerError",
    "NotReadyError",
    "Offline",
    "Online",
    "PlaintextCodec",
    "PolicyChanged",
    "Readable",
    "RefusedError",
    "ReplacedError",
    "ResourceError",
    "ServerError",
    "Session",
    "SessionFileError",
    "SessionOverError",
    "Sync",
    "TimeCorrected",
    "Timeouts",
    "WrongPasswordError",
]
