"""Names and types of the archive's table and of the plans that are applied to it, once."""

import pyarrow
from pyspark.sql.types import BinaryType, BooleanType, LongType, StructField, StructType

LIFETIME = "lifetime"
"""Partition: the retention class, which is the effective expiry of the group when the message moved; -1 keep."""

SPAN = "span"
"""Partition: the first Unix second of the time span in which the message was stored."""

GROUP_KEY = "group_key"
SEQUENCE_NUM = "sequence_num"
SENDER_ID = "sender_id"
IS_COMMIT = "is_commit"
CREATED_AT = "created_at"
CHECKSUM = "checksum"
BODY = "mls_message"

CHECKED = (GROUP_KEY, SEQUENCE_NUM, SENDER_ID, IS_COMMIT, CREATED_AT, BODY)
"""What the checksum of a message covers, in this order."""

ARCHIVE = StructType(
    [
        StructField(LIFETIME, LongType()),
        StructField(SPAN, LongType()),
        StructField(GROUP_KEY, LongType()),
        StructField(SEQUENCE_NUM, LongType()),
        StructField(SENDER_ID, BinaryType()),
        StructField(IS_COMMIT, BooleanType()),
        StructField(CREATED_AT, LongType()),
        StructField(CHECKSUM, LongType()),
        StructField(BODY, BinaryType()),
    ]
)

MOVING = pyarrow.schema(
    [
        (LIFETIME, pyarrow.int64()),
        (GROUP_KEY, pyarrow.int64()),
        (SEQUENCE_NUM, pyarrow.int64()),
        (SENDER_ID, pyarrow.binary()),
        (IS_COMMIT, pyarrow.bool_()),
        (CREATED_AT, pyarrow.int64()),
        (BODY, pyarrow.binary()),
    ]
)
"""Messages of the hot store on their way."""

IS_GONE = "is_gone"
IS_RESTORED = "is_restored"
GONE_BELOW = "gone_below"
CUTOFF = "cutoff"
SENDERS = "senders"

DUE = pyarrow.schema(
    [
        (GROUP_KEY, pyarrow.int64()),
        (IS_GONE, pyarrow.bool_()),
        (IS_RESTORED, pyarrow.bool_()),
        (GONE_BELOW, pyarrow.int64()),
        (CUTOFF, pyarrow.int64()),
        (SENDERS, pyarrow.list_(pyarrow.binary())),
    ]
)
"""A row a group: whether all of it goes, and why; its marks, and whose messages go that are no commits."""
