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


class UpdateProfileRequest(RequestSchema):
    """Changes to the caller's profile; an empty alias clears it, in protobuf an absent one too."""

    empty_counts = ("alias",)

    alias = Text(validate=ALIAS_RULE)


class ChangePasswordRequest(RequestSchema):
    """A new password, by who knows the current one."""

    current_password = required(Text)
    new_password = required(Text, PASSWORD_RULE)


class DeleteAccountRequest(RequestSchema):
    """The end of the account, by who knows its password."""

    password = required(Text)
