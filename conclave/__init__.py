"""A group messaging server whose groups forget on time, and can prove it."""

__version__ = "1.0.0"


def install_hint(extra: str) -> str:
    """Return how to install what is here with an extra. Not by a name: an index may have another package under it."""
    return (
        f"Install it from where Conclave came from: pip install '.[{extra}]' in the folder of the sources,"
        f" or the wheel, as in pip install 'conclave_messaging-{__version__}-py3-none-any.whl[{extra}]'"
    )
