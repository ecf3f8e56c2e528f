"""What the sections of the settings share."""

from marshmallow import RAISE, Schema, ValidationError, validate

NOT_EMPTY = validate.Length(min=1, error="must not be empty")
PATH = [NOT_EMPTY, validate.ContainsNoneOf("\0", error="must not hold a zero byte")]
PORT = validate.Range(0, 65535, error="must be between 0 and 65535")


def require_host(text: str) -> None:
    """Raise ValidationError for what is looked up as no host: nothing, or a name with two dots side by side, say."""
    NOT_EMPTY(text)
    try:
        text.encode("idna")
    except UnicodeError as error:
        raise ValidationError("is neither an address nor a host name") from error


class Section(Schema):
    """A table of settings. An unknown name is a fault."""

    error_messages = {"type": "must be a table"}

    class Meta:
        """A mistyped setting must not be ignored silently."""

        unknown = RAISE
