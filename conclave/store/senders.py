"""What a user has sent: how the index finds it.

An index by sender alone would have the messages of each user in another place. Each message that is stored would change
another page, which the commit has to write. So the index goes by blocks of 4096 bodies that were stored one after the
other, and by sender within a block: what is stored at the same time changes few pages. Whoever looks for the messages
of a user looks into each block, which takes a few microseconds.
"""

SENT = "message_blocks CROSS JOIN messages ON message_id >> 12 = block"
"""What to select from, in SQL, with a condition for ``sender_id``, a value or a column of a table named before.

The messages come block by block, those that were stored first, first. Without it all messages would be read.
"""
