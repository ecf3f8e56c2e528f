"""``python -m conclave`` is the ``conclave`` command."""

from conclave.cli import main

if __name__ == "__main__":
    main()
