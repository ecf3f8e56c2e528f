from pathlib import Path

import pytest

from tests.web.node import bundled


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the programs of web/test."""
    return bundled(tmp_path_factory.mktemp("web"))
