-- Lists are read a part at a time, each from where the one before has ended: so each has an index in its own order.
-- Behind the columns of an index SQLite has the table's key.
CREATE INDEX groups_public ON groups (group_name) WHERE visibility = 'public';
CREATE INDEX members_by_group ON members (group_key);
CREATE INDEX members_admins ON members (group_key) WHERE role = 'admin';
CREATE INDEX bans_by_group ON bans (group_key);
CREATE INDEX invites_by_group ON invites (group_key);
