"""The pictures of the docs: whole, named, and shown by a page."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.test_docs import PAGES, ROOT, path_of

PICTURES = sorted((ROOT / "docs").rglob("*.svg"))
DRAWN = [each for each in PICTURES if each.parent.name == "pictures"]
SVG = "{http://www.w3.org/2000/svg}"


def shown(page: Path) -> dict[Path, str]:
    """Return what a page shows: each picture with its text for those who do not see it."""
    found = re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    return {(page.parent / link).resolve(): text for text, link in found if "://" not in link}


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_a_page_shows_only_pictures_that_are_there_and_says_what_is_on_them(page: Path) -> None:
    for picture, text in shown(page).items():
        assert picture.is_file(), picture
        assert text, picture


def test_every_picture_is_shown() -> None:
    assert DRAWN
    assert set(PICTURES) <= {picture for page in PAGES for picture in shown(page)}


@pytest.mark.parametrize("picture", DRAWN, ids=lambda picture: picture.stem)
def test_a_picture_is_whole_says_what_it_is_and_loads_nothing(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    drawn = ElementTree.fromstring(text)
    assert drawn.tag == f"{SVG}svg"
    for name in ("title", "desc"):
        assert (drawn.findtext(f"{SVG}{name}") or "").strip(), name
    named = {each.get("id") for each in drawn.iter()}
    assert set((drawn.get("aria-labelledby") or "").split()) == {"title", "desc"} <= named
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"<script|<image|href|@import|https?://(?!www\.w3\.org/2000/svg)", text)
