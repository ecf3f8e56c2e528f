"""The native library that the archive needs is loaded whatever the mount of the data directory allows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark import requirements
from spark.requirements import RequirementError, open_zstd, path_of, require_zstd

USE = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).Java_com_github_luben_zstd_Zstd_compressBound"


def forbid_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every folder be on a mount with noexec."""
    found = os.statvfs("/")
    values = [*found]
    values[8] |= os.ST_NOEXEC
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(values))


def test_the_library_is_in_memory_where_it_can_be_loaded_and_nobody_can_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_execution(monkeypatch)
    descriptor = open_zstd(tmp_path)
    assert descriptor is not None
    try:
        subprocess.run([sys.executable, "-c", USE, path_of(descriptor)], pass_fds=[descriptor], check=True)
        assert str(Path(path_of(descriptor)).readlink()).startswith("/memfd:"), "no other user finds it by a name"
    finally:
        os.close(descriptor)
    assert list(tmp_path.iterdir()) == []


def test_where_memory_cannot_be_executed_either_the_mount_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "_LOAD", "raise SystemExit(1)")
    assert open_zstd(tmp_path) is None, "Java unpacks it into the folder"
    forbid_execution(monkeypatch)
    with pytest.raises(RequirementError, match="a noexec mount: put data_path"):
        require_zstd(tmp_path / "not yet made")
