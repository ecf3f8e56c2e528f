"""What is put on the disk: only what was named, unless an operator may have named a link."""

from pathlib import Path

import pytest

from conclave.system.durable import sync


def test_a_link_is_followed_only_where_an_operator_may_have_named_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "named").symlink_to(tmp_path / "folder" / "file")
    sync(tmp_path / "folder")
    sync(tmp_path / "folder" / "file")
    sync(tmp_path / "link" / "file")
    sync(tmp_path / "link", follows_links=True)
    for link in ("link", "named"):
        with pytest.raises(OSError, match="symbolic links"):
            sync(tmp_path / link)
