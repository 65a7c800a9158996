"""Checks, while `mkdocs build` makes the site, that the API reference lacks no public name.

A name without a docstring is left out of the reference, so that it is found here too.
"""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
logger = logging.getLogger("mkdocs.hooks.reference")


_pages: dict[str, str] = {}  # of each room, all that its pages say


def on_page_content(html: str, page: Any, **_: Any) -> None:
    """Keep what a page says of a room; several pages may share one, by topic."""
    for room in re.findall(r"^::: (fl_epe[\w.]*)$", page.markdown, re.M):
        _pages[room] = _pages.get(room, "") + html


def on_post_build(**_: Any) -> None:
    """Warn of a public name of a room that its pages lack; with ``strict`` the build then fails."""
    for room, html in _pages.items():
        for name in _public(room):
            if not re.search(rf'id="{re.escape(room)}\.(\w+\.)*{name}"', html):
                logger.warning("%s.%s is missing in the reference", room, name)
    _pages.clear()


def _public(room: str) -> list[str]:
    """``__all__`` of a room but its own rooms, without importing it; nothing for a single file."""
    source = ROOT / room.replace(".", "/") / "__init__.py"
    if not source.exists():
        return []
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "__all__"
        ):
            names = ast.literal_eval(node.value)
            return [
                name for name in names if not (source.parent / name).is_dir()
            ]
    return []
