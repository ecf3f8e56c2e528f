"""Schema migrations: NNNN_name.sql, applied in order, never changed once released."""
