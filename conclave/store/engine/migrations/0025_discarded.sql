-- Bodies to which nothing refers any more: too many, or too large, to be erased by the request that let go of them. The
-- server erases them soon after, or the next run does.
CREATE TABLE discarded_bodies (
    discarded_body INTEGER PRIMARY KEY
) STRICT;
