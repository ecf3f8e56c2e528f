"""Steps after ``schema.sql``: NNNN_name.sql, from 0002 on, applied in order, never changed once released."""
