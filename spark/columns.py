"""Column names and types of the tables that the pipeline reads, and of the plan that it makes.

Every column is a 64-bit integer, since sequence numbers and times do not fit 32 bits. Only a user id is binary: 16
bytes.
"""

from pyspark.sql.types import BinaryType, DataType, LongType, StructField, StructType

GROUP_KEY = "group_key"
LIFETIME = "effective_expiry"
"""The effective expiry of a group: -1 for keep, 0 for delete-after-fetch, or seconds."""

LEAST_LIFETIME = "least_lifetime"
HOLD_LIMIT = "hold_limit"
ERASES = "erases"
"""0 if nothing may be erased, otherwise 1."""

HELD = "held"
"""1 if a legal hold covers the group, otherwise 0."""

EXPIRES_BEFORE = "expires_before"
"""Messages created before it have expired by age when the run begins. Unix seconds, exclusive; 0: none has."""

ERASABLE_BEFORE = "erasable_before"
"""Messages created before it are old enough to be erased. Unix seconds, exclusive; 0: none may be."""

COVERED = "covered"
"""1 if the group belongs to the run by its lifetime, otherwise 0."""

COMMITS_ABOVE = "commits_above"
"""Commits with greater numbers do not expire by age."""

FLOOR = "floor_seq"
GONE_BELOW = "gone_below"
EXPIRED_BEFORE = "expired_before"
OLDEST_SEQ = "oldest_seq"
OLDEST_CREATED = "oldest_created_at"
OLDEST_MARKED = "oldest_marked_at"
OLDEST_FETCHED = "oldest_fetched_at"
WATERMARK = "watermark"
READ_UP_TO = "read_up_to"
MEMBER_ID = "member_id"
SEQUENCE_NUM = "sequence_num"
SENDER_ID = "sender_id"
ENDED = "ended"
"""1 if a self-destructing message is hidden from all for good, otherwise 0."""

REDACTS = "redacts"
"""1 if messages of the group go that are redacted for everybody, otherwise 0."""

REDACT_AT = "redact_at"
LEAST_WATERMARK = "least_watermark"
SESSION_ID = "session_id"
EXPIRES_AT = "expires_at"
INVITE_KEY = "invite_key"
CREATED_AT = "created_at"
USER_ID = "user_id"

_INTEGER = LongType()


def _table(*names: str, of: DataType = _INTEGER) -> StructType:
    return StructType([StructField(name, of) for name in names])


GROUPS = _table(
    *(GROUP_KEY, LIFETIME, LEAST_LIFETIME, HOLD_LIMIT, ERASES, HELD, FLOOR, GONE_BELOW, EXPIRED_BEFORE, COMMITS_ABOVE),
    *(OLDEST_SEQ, OLDEST_CREATED, OLDEST_MARKED, OLDEST_FETCHED),
)
"""One row for each group: its policy and marks, and what is known of the messages that no legal hold covers.

OLDEST_SEQ: the least number. OLDEST_CREATED: the least time of those that can expire by age. OLDEST_MARKED: that of
those which the mark GONE_BELOW covers. OLDEST_FETCHED: that of those which all members have fetched; only for groups in
delete-after-fetch whose messages have to reach an age. Null: there is none.
"""

MEMBERS = _table(GROUP_KEY, WATERMARK)
SELF_DESTRUCTING = StructType(
    [*_table(GROUP_KEY, SEQUENCE_NUM, CREATED_AT, ENDED), StructField(SENDER_ID, BinaryType())]
)
"""Self-destructing messages that no legal hold on their sender covers."""

READERS = StructType([*_table(GROUP_KEY, MEMBER_ID, READ_UP_TO), StructField(USER_ID, BinaryType())])
"""The members of groups that have self-destructing messages, and how far each has read."""

REDACTED = _table(GROUP_KEY, CREATED_AT)
"""Messages that are redacted for everybody, and that no legal hold on their sender covers."""

TIMERS = _table(GROUP_KEY, SEQUENCE_NUM, MEMBER_ID)
"""The timers that have not ended."""

SESSIONS = _table(SESSION_ID, EXPIRES_AT)
INVITES = _table(INVITE_KEY, CREATED_AT)
TOMBSTONES = _table(GROUP_KEY)
USER_TOMBSTONES = _table(USER_ID, of=BinaryType())

GROUP_PLAN = _table(GROUP_KEY, FLOOR, GONE_BELOW, EXPIRED_BEFORE, ERASABLE_BEFORE, COMMITS_ABOVE, REDACTS)
"""One row for each group that has something due, as GroupStep has it."""
