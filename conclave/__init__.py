"""A group messaging server whose groups forget on time, and can prove it."""

__version__ = "1.0.0"


def install_hint(extra: str) -> str:
    """Return how to install this package with an extra.

    It names local files, since a package index may have another package of this name.
    """
    return (
        f"Install it from the sources: pip install '.[{extra}]' in their folder,"
        f" or from the wheel: pip install 'conclave_messaging-{__version__}-py3-none-any.whl[{extra}]'"
    )
