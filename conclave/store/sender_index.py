"""What a user has sent: how the index finds it.

An index by sender alone would have each message in another place. So it goes by group, as the messages do, and a search
for the messages of a user looks into each group, which takes a few microseconds.
"""

SENT = (
    "(SELECT group_key AS of_group FROM groups UNION ALL SELECT group_key FROM tombstones)"
    " CROSS JOIN messages INDEXED BY messages_by_sender ON messages.group_key = of_group"
)
"""What to select from, in SQL, with a condition for ``sender_id``, a value or a column of a table named before."""
