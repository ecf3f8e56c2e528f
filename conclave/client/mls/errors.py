"""Errors of MLS, one class for each way to handle them."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class MlsError(Exception):
    """The base class of this package's errors. No text contains a key or a message."""


class MalformedMessageError(MlsError):
    """The bytes are not a message of the protocol."""


class LimitError(MlsError):
    """A value exceeds a limit of this package."""


class InvalidError(MlsError):
    """A check required by the protocol has failed: the message is rejected, and nothing has changed."""


class ForgedError(InvalidError):
    """The signature or membership tag of a message is wrong in this epoch: it is not from a member."""


class DisallowedProposalError(InvalidError):
    """A proposal has a type that the application does not allow (``Policy.proposals``)."""


class StaleError(MlsError):
    """The message belongs to another epoch, for which there are no keys."""


class ReplayedError(MlsError):
    """The key of this message is erased: the message was read before, or is too old."""


class OwnMessageError(MlsError):
    """The message is the reader's own: its key was erased when it was sent."""


class OutdatedStateError(MlsError):
    """The message is signed by the own key but was not created from this state, which is outdated or a copy."""


class WrongRecipientError(MlsError):
    """The message is for another group or for other clients."""


class StateError(MlsError):
    """The operation is not possible in the group's current state."""


def convert_errors(call: Callable[P, R]) -> Callable[P, R]:
    """Convert every exception of a function to an MlsError: data from others must not stop the program.

    Use it for functions without side effects, at the boundary of this package.
    """

    @wraps(call)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except MlsError:
            raise
        except Exception as error:
            raise InvalidError(f"it cannot be processed ({type(error).__name__})") from error

    return wrapper
