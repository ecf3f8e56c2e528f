"""The built browser chat (sources in ``web/``), and the code that serves its files."""
