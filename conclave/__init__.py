"""A group messaging server whose groups forget on time, and can prove it."""

__version__ = "1.0.0"


def install_hint(extra: str) -> str:
    """Return how to install this package with an extra: from files, since an index may have another of the name."""
    return (
        f"Install it from the sources: pip install '.[{extra}]' in their folder,"
        f" or from the wheel: pip install 'conclave_messaging-{__version__}-py3-none-any.whl[{extra}]'"
    )
