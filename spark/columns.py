"""Names and types of every table that the pipeline reads and of the plan that it makes, once.

Every column is a 64-bit integer (sequence numbers and times do not fit 32 bits), but for user ids: 16 bytes.
"""

from pyspark.sql.types import BinaryType, DataType, LongType, StructField, StructType

GROUP_KEY = "group_key"
EXPIRY = "message_expiry_seconds"
LIFETIME = "lifetime"
"""The effective expiry of a group: -1 keep, 0 delete-after-fetch, or seconds."""

EXPIRES_BEFORE = "expires_before"
"""Created before: expired by age at the second of the run. Unix seconds, exclusive; 0: nothing."""

FLOOR = "floor_seq"
GONE_BELOW = "gone_below"
EXPIRED_BEFORE = "expired_before"
OLDEST_SEQ = "oldest_seq"
OLDEST_CREATED = "oldest_created_at"
WATERMARK = "watermark"
LEAST_WATERMARK = "least_watermark"
SESSION_ID = "session_id"
EXPIRES_AT = "expires_at"
INVITE_KEY = "invite_key"
CREATED_AT = "created_at"
USER_ID = "user_id"


_INTEGER = LongType()


def _table(*names: str, of: DataType = _INTEGER) -> StructType:
    return StructType([StructField(name, of) for name in names])


STORED_GROUPS = _table(GROUP_KEY, EXPIRY, FLOOR, GONE_BELOW, EXPIRED_BEFORE, OLDEST_SEQ, OLDEST_CREATED)
"""A row a group: setting, marks, and the least number and time among its stored messages (null: none)."""

MEMBERS = _table(GROUP_KEY, WATERMARK)
SESSIONS = _table(SESSION_ID, EXPIRES_AT)
INVITES = _table(INVITE_KEY, CREATED_AT)
TOMBSTONES = _table(GROUP_KEY)
USER_TOMBSTONES = _table(USER_ID, of=BinaryType())
GROUPS = StructType([*STORED_GROUPS, *_table(LIFETIME, EXPIRES_BEFORE)])
"""The same with the policy of each group."""

GROUP_PLAN = _table(GROUP_KEY, FLOOR, GONE_BELOW, EXPIRED_BEFORE)
"""A row a group that has something due: its marks after the run, up to which its messages go."""
