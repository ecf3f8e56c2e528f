"""What a user has sent: how the index finds it.

An index by sender alone would have the messages of each user in another place. Each message that is stored would change
another page, which the commit has to write. So the index goes by blocks of 4096 bodies that were stored one after the
other, and by sender within a block: what is stored at the same time changes few pages. A search for the messages
of a user looks into each block, which takes a few microseconds.
"""

BLOCK = "message_id >> 12"
"""The block of a message, in SQL: as the index has it, so that SQLite knows it again."""

SENT = f"message_blocks CROSS JOIN messages INDEXED BY messages_by_sender ON {BLOCK} = block"
"""What to select from, in SQL, with a condition for ``sender_id``, a value or a column of a table named before.

The blocks come in the order in which they were stored; within one, the messages come in any order. The index is named
because SQLite would rather read all messages of a group, once for each block, where a condition names that group.
"""
