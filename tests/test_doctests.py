"""Every example in a docstring of the package is run, and every room's door has one."""

import doctest
import importlib
import pkgutil

import pytest

import fl_epe

ROOMS = sorted(
    info.name for info in pkgutil.iter_modules(fl_epe.__path__) if info.ispkg
)


def _examples():
    """Docstrings with examples, by the dotted name of what they explain."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for info in [None, *pkgutil.walk_packages(fl_epe.__path__, "fl_epe.")]:
        name = "fl_epe" if info is None else info.name
        for test in finder.find(importlib.import_module(name), name):
            if test.examples:
                yield test.name, test


EXAMPLES = dict(_examples())


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_it_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    runner = doctest.DocTestRunner(
        optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    )
    result = runner.run(EXAMPLES[name], out=printed.append)
    assert result.attempted
    assert not result.failed, "".join(printed)


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_shows_an_example(room):
    assert f"fl_epe.{room}" in EXAMPLES
