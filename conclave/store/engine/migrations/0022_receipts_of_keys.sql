-- How many of the erased messages were under keys, which are lost with them: no copy that has them so can be read.
ALTER TABLE erasures ADD COLUMN keys_lost INTEGER NOT NULL DEFAULT 0;
ALTER TABLE receipts ADD COLUMN keys_lost INTEGER NOT NULL DEFAULT 0;
