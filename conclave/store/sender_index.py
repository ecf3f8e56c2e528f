"""SQL to find the messages of a sender.

An index by sender alone would scatter the inserts of a group. So the index begins with the group, like the messages'
primary key, and a search probes each group, which takes a few microseconds.
"""

SENT = (
    "(SELECT group_key AS of_group FROM groups UNION ALL SELECT group_key FROM tombstones)"
    " CROSS JOIN messages INDEXED BY messages_by_sender ON messages.group_key = of_group"
)
"""The FROM clause. The query needs a condition on ``sender_id``: a value, or a column of a preceding table."""
