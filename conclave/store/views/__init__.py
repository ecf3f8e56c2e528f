"""Reports for operators and users, from several tables."""
