"""The client library, for whoever talks to a Conclave server. Of the server it imports the wire formats only."""

from conclave.client.api import Client
from conclave.client.codec import Change, Codec, PlaintextCodec, UnreadableError
from conclave.client.errors import (
    AnswerError,
    AnswerTooLongError,
    AuthError,
    BusyError,
    ClientError,
    GroupError,
    InputError,
    NoAnswerError,
    RefusedError,
    ResourceError,
    ServerError,
    SessionOverError,
)
from conclave.client.history.schema import HistoryError
from conclave.client.history.store import History
from conclave.client.news import (
    GroupGone,
    Message,
    MessageArrived,
    MessagesGone,
    News,
    Offline,
    Online,
    PolicyChanged,
    TimeCorrected,
)
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
    "Format",
    "GroupError",
    "GroupGone",
    "History",
    "HistoryError",
    "InputError",
    "Message",
    "MessageArrived",
    "MessagesGone",
    "News",
    "NoAnswerError",
    "Offline",
    "Online",
    "PlaintextCodec",
    "PolicyChanged",
    "RefusedError",
    "ResourceError",
    "ServerError",
    "Session",
    "SessionFileError",
    "SessionOverError",
    "Sync",
    "TimeCorrected",
    "Timeouts",
    "UnreadableError",
]
