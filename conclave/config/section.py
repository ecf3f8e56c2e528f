"""What the sections of the settings share."""

from marshmallow import RAISE, Schema, validate

NOT_EMPTY = validate.Length(min=1, error="must not be empty")
PATH = [NOT_EMPTY, validate.ContainsNoneOf("\0", error="must not hold a zero byte")]
PORT = validate.Range(0, 65535, error="must be between 0 and 65535")


class Section(Schema):
    """A table of settings. An unknown name is a fault."""

    error_messages = {"type": "must be a table"}

    class Meta:
        """A mistyped setting must not be ignored silently."""

        unknown = RAISE
