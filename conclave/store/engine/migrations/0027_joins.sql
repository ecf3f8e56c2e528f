-- Joins that are not completed by an external commit: the server undoes those that are overdue.
CREATE INDEX members_joining ON members (joined_at) WHERE joining;
