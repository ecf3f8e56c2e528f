"""What can go wrong in MLS: a class for each way to go on, a plain sentence in each error."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class MlsError(Exception):
    """Whatever this package raises. No text of it has a key or a message."""


class MalformedMessageError(MlsError):
    """The bytes are no message of the protocol."""


class LimitError(MlsError):
    """Something is larger, or further ahead, than this package takes."""


class InvalidError(MlsError):
    """A check that the protocol demands has failed: the message is refused, and nothing has changed."""


class ForgedError(InvalidError):
    """The signature or the tag that shows who a message is from is wrong in this epoch: it is not from its members."""


class DisallowedProposalError(InvalidError):
    """A proposal is of a kind that the application does not take (``Policy.proposals``)."""


class StaleError(MlsError):
    """The message is of an epoch that is not the group's, and whose keys are not there."""


class ReplayedError(MlsError):
    """The key of this message is used up: it was read before, or lies too far back."""


class OwnMessageError(MlsError):
    """The message is the reader's own: its key was erased when it was sent."""


class OutdatedStateError(MlsError):
    """The message is signed by the reader's own key, and was not made from this state: it is an old one, or a copy."""


class WrongRecipientError(MlsError):
    """The message is meant for another group or for other clients."""


class StateError(MlsError):
    """The group is not in a state in which this can be done."""


def convert_errors(call: Callable[P, R]) -> Callable[P, R]:
    """Raise an MlsError for whatever a call raises: what others send must not end the program.

    For calls without side effects, at the border of this package.
    """

    @wraps(call)
    def inner(*args: P.args, **named: P.kwargs) -> R:
        try:
            return call(*args, **named)
        except MlsError:
            raise
        except Exception as error:
            raise InvalidError(f"it cannot be processed ({type(error).__name__})") from error

    return inner
