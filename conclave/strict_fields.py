"""Strict marshmallow fields: they do not convert "yes" to true, true to 1, or "5" to 5."""

from typing import Any

from marshmallow import fields


class StrictInteger(fields.Integer):
    """An integer. "5", 5.0 and true are invalid."""

    default_error_messages = {"invalid": "must be an integer"}

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> int:
        if type(value) is not int:
            raise self.make_error("invalid")
        return value


class StrictBoolean(fields.Boolean):
    """true or false. Other values are invalid."""

    default_error_messages = {"invalid": "must be true or false"}

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> bool:
        if type(value) is not bool:
            raise self.make_error("invalid")
        return value


class Text(fields.String):
    """A string."""

    default_error_messages = {"invalid": "must be a string"}
