"""The search for bodies finds each piece, wherever it lies: other tests say that there is none."""

import io
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.support.forensics import Search

COUNT = 300


@pytest.mark.parametrize("begin", range(12))
def test_any_24_bytes_of_a_body_are_found(tmp_path: Path, begin: int) -> None:
    search = Search()
    piece = search.body(7, 400)[begin : begin + 24]
    for name, around in {"amid zeros": bytes(100), "beside others": search.body(8, 50)}.items():
        (tmp_path / name).write_bytes(around + piece + around)
        assert 7 in search.numbers_in_files(tmp_path / name), name
    assert Search().numbers_in(tmp_path) == set(), "another search's bodies are not this one's"


def test_a_piece_is_found_after_another_that_was_cut_off_anywhere(tmp_path: Path) -> None:
    search = Search()
    for cut in range(1, 12):
        (tmp_path / "file").write_bytes(search.body(7, 24 + cut) + search.body(8, 12))
        assert search.numbers_in(tmp_path) == {7, 8}, cut
        (tmp_path / "file").write_bytes(search.body(7, cut) + search.body(8, 12))
        assert search.numbers_in(tmp_path) == {8}, cut


@pytest.mark.parametrize("row_group_size", [10, COUNT])
@pytest.mark.parametrize("data_page_size", [100, 1_000_000])
def test_bodies_are_found_in_files_of_the_archive_s_format(
    tmp_path: Path, row_group_size: int, data_page_size: int
) -> None:
    """There they are packed: of these none is to be seen in the bytes of the file."""
    search = Search()
    bodies = pyarrow.array([search.body(number, 24 + number * 37 % 3000) for number in range(COUNT)], pyarrow.binary())
    written = io.BytesIO()
    pyarrow.parquet.write_table(
        pyarrow.table({"mls_message": bodies}),
        written,
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
        row_group_size=row_group_size,
        data_page_size=data_page_size,
    )
    (tmp_path / "file.parquet").write_bytes(written.getvalue())
    assert search.numbers_in(tmp_path) == set(range(COUNT))
