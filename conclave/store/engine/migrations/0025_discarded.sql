-- Bodies to which nothing refers any more: too many, or too large, to be erased by the request that let go of them. The
-- next run erases them.
CREATE TABLE discarded_bodies (
    discarded_body INTEGER PRIMARY KEY
) STRICT;
