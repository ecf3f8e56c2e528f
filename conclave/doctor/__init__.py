"""What `conclave doctor` looks at: the machine, the files, the database. It changes nothing."""
