"""Registration, login and the caller's own account."""

from dataclasses import dataclass

from conclave.fields import Text
from conclave.wire.fields import ALIAS_RULE, NAME_RULE, PASSWORD_RULE, Identifier, required
from conclave.wire.schemas.base import RequestSchema, ResponseSchema


@dataclass(frozen=True)
class Register:
    """Who wants an account; "" for a token that was not given."""

    username: str
    password: str
    alias: str
    registration_token: str


class RegisterRequest(RequestSchema):
    """A new account."""

    makes = Register

    username = required(Text, NAME_RULE)
    password = required(Text, PASSWORD_RULE)
    alias = Text(load_default="", validate=ALIAS_RULE)
    registration_token = Text(load_default="")


class RegisterResponse(ResponseSchema):
    """The new account's id."""

    user_id = Identifier()


@dataclass(frozen=True)
class Login:
    """Who wants a session."""

    username: str
    password: str


class LoginRequest(RequestSchema):
    """Credentials."""

    makes = Login

    username = required(Text)
    password = required(Text)


class LoginResponse(ResponseSchema):
    """A session's token: shown here once, stored nowhere."""

    token = Text()
    user_id = Identifier()
    username = Text()


@dataclass(frozen=True)
class UpdateProfile:
    """What changes; None does not, "" is cleared."""

    alias: str | None = None


class UpdateProfileRequest(RequestSchema):
    """Changes to the caller's profile; an empty alias clears it, in protobuf an absent one too."""

    makes = UpdateProfile

    empty_counts = ("alias",)

    alias = Text(validate=ALIAS_RULE)


@dataclass(frozen=True)
class ChangePassword:
    """The password as it is, and as it is to be."""

    current_password: str
    new_password: str


class ChangePasswordRequest(RequestSchema):
    """A new password, by who knows the current one."""

    makes = ChangePassword

    current_password = required(Text)
    new_password = required(Text, PASSWORD_RULE)


@dataclass(frozen=True)
class DeleteAccount:
    """Whether it is really the user who asks."""

    password: str


class DeleteAccountRequest(RequestSchema):
    """The end of the account, by who knows its password."""

    makes = DeleteAccount

    password = required(Text)
