"""What users may learn about one another."""

from conclave.fields import Text
from conclave.wire.fields import Identifier
from conclave.wire.schemas.base import ResponseSchema


class UserInfoResponse(ResponseSchema):
    """An account."""

    user_id = Identifier()
    username = Text()
    alias = Text()
    signing_key_fingerprint = Text()
