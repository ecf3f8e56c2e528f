"""``python -m conclave`` is the ``conclave`` command."""

from conclave.cli.main import main

if __name__ == "__main__":
    main()
