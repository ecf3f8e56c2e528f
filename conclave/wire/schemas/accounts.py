"""Registration, login and the caller's own account."""

from conclave.fields import Text
from conclave.wire.fields import ALIAS_RULE, NAME_RULE, PASSWORD_RULE, Identifier, required
from conclave.wire.schemas.base import RequestSchema, ResponseSchema


class RegisterRequest(RequestSchema):
    """A new account."""

    username = required(Text, NAME_RULE)
    password = required(Text, PASSWORD_RULE)
    alias = Text(load_default="", validate=ALIAS_RULE)
    registration_token = Text(load_default="")


class RegisterResponse(ResponseSchema):
    """The new account's id."""

    user_id = Identifier()


class LoginRequest(RequestSchema):
    """Credentials."""

    username = required(Text)
    password = required(Text)


class LoginResponse(ResponseSchema):
    """A session's token: shown here once, stored nowhere."""

    token = Text()
    user_id = Identifier()
    username = Text()
