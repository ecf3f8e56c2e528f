"""Checks names before they are sent: what cannot be one would only be refused, or lead to another path. Pure."""

from marshmallow import ValidationError

from conclave.client.errors import InputError
from conclave.errors import ErrorCode
from conclave.wire.fields import NAME_RULE


def checked(field: str, name: str) -> str:
    """Return a name of a user or a group that can be one. Raises InputError, as the server would.

    ``field``: what the protocol calls it, "username" or "group_name".
    """
    try:
        return str(NAME_RULE(name))
    except ValidationError as error:
        faults = [str(each) for each in error.messages]
        text = f"{field}: {' '.join(faults)}"
        raise InputError(400, ErrorCode.INPUT_VALIDATION, text, {field: faults}) from error
