"""Registration, login and the caller's own account."""

from dataclasses import dataclass

from conclave.strict_fields import Text
from conclave.wire.fields import ALIAS_RULE, NAME_RULE, PASSWORD_RULE, required
from conclave.wire.schemas.base import RequestSchema


@dataclass(frozen=True)
class Register:
    """A new account. ``registration_token``: "" if absent."""

    username: str
    password: str
    alias: str
    registration_token: str


class RegisterRequest(RequestSchema):
    """A new account."""

    result_class = Register

    username = required(Text, NAME_RULE)
    password = required(Text, PASSWORD_RULE)
    alias = Text(load_default="", validate=ALIAS_RULE)
    registration_token = Text(load_default="")


@dataclass(frozen=True)
class Login:
    """The username and the password of a login."""

    username: str
    password: str


class LoginRequest(RequestSchema):
    """A username and its password."""

    result_class = Login

    username = required(Text)
    password = required(Text)


@dataclass(frozen=True)
class UpdateProfile:
    """Changes to the profile. ``alias``: None: unchanged; "": cleared."""

    alias: str | None = None


class UpdateProfileRequest(RequestSchema):
    """Changes to the caller's profile. An empty alias clears it; in protobuf an absent one does too."""

    result_class = UpdateProfile

    keep_empty = ("alias",)

    alias = Text(validate=ALIAS_RULE)


@dataclass(frozen=True)
class ChangePassword:
    """The current password and the new one."""

    current_password: str
    new_password: str


class ChangePasswordRequest(RequestSchema):
    """A new password, and the current one as proof."""

    result_class = ChangePassword

    current_password = required(Text)
    new_password = required(Text, PASSWORD_RULE)


@dataclass(frozen=True)
class DeleteAccount:
    """The password of the account to delete."""

    password: str


class DeleteAccountRequest(RequestSchema):
    """The deletion of the caller's account, with its password as proof."""

    result_class = DeleteAccount

    password = required(Text)
