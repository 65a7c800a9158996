"""The site is self-contained: none of its pages asks another host for anything."""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETTINGS = (ROOT / "mkdocs.yml").read_text("utf-8")
LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "link": "href",
}


class _Loads(HTMLParser):
    """What a page loads by itself, and whether it asks a host of repositories for stars."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.asks_for_stars = [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.asks_for_stars |= found.get("data-md-component") == "source"
        place = found.get(LOADED.get(tag, ""))
        if place and found.get("rel") not in ("canonical", "next", "prev"):
            self.addresses.append(place)


def test_nothing_is_set_that_makes_pages_call_a_host():
    """Material's own fonts, and the stars of a repository that it is told."""
    assert re.search(r"^  font: false", SETTINGS, re.M)
    for name in ("repo_url", "analytics", "extra_javascript"):
        assert not re.search(rf"^ *{name}:", SETTINGS, re.M)


def test_what_a_page_loads_is_found():
    page = '<link rel="stylesheet" href="https://a.b/c.css"><script src="d.js"></script>'
    assert _Loads(page).addresses == ["https://a.b/c.css", "d.js"]
    assert _Loads(
        '<a data-md-component="source" href="https://a.b">'
    ).asks_for_stars


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="needs the extra docs"
)
def test_no_page_of_the_site_calls_another_host(tmp_path):
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        tmp_path,
    ]
    subprocess.run(
        command,
        cwd=ROOT,
        check=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        loads = _Loads(page.read_text("utf-8"))
        assert not loads.asks_for_stars, page
        assert [
            one for one in loads.addresses if re.match(r"(https?:)?//", one)
        ] == [], page
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(
            r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text("utf-8")
        ), sheet
