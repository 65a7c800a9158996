"""Files that are written whole and through no link; text from outside on its way out."""

import errno
import json
import os
from pathlib import Path

import pytest

from fl_epe.files import (
    inside,
    lock_of,
    open_no_link,
    part_of,
    printable,
    remove_parts,
    whole_file,
    write_text,
)

HOSTILE = {
    "clears-the-screen": "\x1b[2J\x1b[H",
    "one-byte-escape": "\x9b2J",
    "bell-and-back": "\x07\x08\r",
    "right-to-left": "\u202e",
    "no-character": "\udc80",
    "tag": "\U000e0041",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_moves_the_cursor_is_written_out(text):
    assert printable(f"a{text}b").isprintable()
    said = json.dumps({"text": text}, ensure_ascii=False)
    again = json.loads(printable(said))["text"]
    assert again == text


def test_lines_and_typographic_spaces_stay():
    assert printable("ε\u202f=\u00a01\nκ\tβ") == "ε\u202f=\u00a01\nκ β"


def test_only_what_we_left_half_written_is_removed(tmp_path):
    ours = part_of(tmp_path / "checkpoint.npz")
    ours.touch()
    theirs = {
        "film.part",
        "film.fl-epe-part",
        "a.npz.0123abcd.part",
        "b.0123ABCD.fl-epe-part",
    }
    for name in theirs:
        (tmp_path / name).touch()
    (tmp_path / "folder.0123abcd.fl-epe-part").mkdir()
    (tmp_path / "link.0123abcd.fl-epe-part").symlink_to(tmp_path / "film.part")
    remove_parts(tmp_path)
    kept = {"folder.0123abcd.fl-epe-part", "link.0123abcd.fl-epe-part"}
    assert {path.name for path in tmp_path.iterdir()} == theirs | kept


def test_a_folder_that_ends_in_part_stops_nothing(tmp_path):
    (tmp_path / "a.txt.part").mkdir()
    assert write_text(tmp_path / "a.txt", "whole").read_text() == "whole"


def test_a_link_is_replaced_and_not_followed(tmp_path):
    mine, link = tmp_path / "mine", tmp_path / "report.json"
    mine.write_text("mine")
    link.symlink_to(mine)
    write_text(link, "ours")
    assert (mine.read_text(), link.read_text(), link.is_symlink()) == (
        "mine",
        "ours",
        False,
    )


def test_what_is_appended_to_is_no_link_and_no_pipe(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=name):
            os.close(
                open_no_link(str(tmp_path / name), os.O_WRONLY | os.O_APPEND)
            )
    with open(tmp_path / "mine", "a", opener=open_no_link) as file:
        file.write(" more")
    assert (tmp_path / "mine").read_text() == "mine more"


def test_a_full_disk_leaves_the_page_that_was_there(tmp_path, monkeypatch):
    page = write_text(tmp_path / "report.html", "good")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_text(page, "new")
    assert page.read_text() == "good"
    assert list(tmp_path.iterdir()) == [page]


def test_who_may_read(tmp_path):
    with whole_file(tmp_path / "secret", private=True) as file:
        file.write(b"1")
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "open", "1")
    finally:
        os.umask(before)
    modes = [
        Path(tmp_path / name).stat().st_mode & 0o777
        for name in ("secret", "open")
    ]
    assert modes == [0o600, 0o644]


def test_a_file_with_other_names_is_not_appended_to(tmp_path):
    (tmp_path / "mine").write_text("mine")
    os.link(tmp_path / "mine", tmp_path / "run.log")
    with pytest.raises(OSError, match="other names") as error:
        open(tmp_path / "run.log", "a", opener=open_no_link)  # noqa: SIM115
    assert error.value.errno == errno.EMLINK
    with open(tmp_path / "run.log", opener=open_no_link) as file:
        assert file.read() == "mine"


@pytest.mark.parametrize("kind", ["hard-link", "link", "pipe"])
def test_a_lock_is_a_file_of_its_own(kind, tmp_path):
    (tmp_path / "mine").write_text("mine")
    path = tmp_path / "lock"
    match kind:
        case "hard-link":
            os.link(tmp_path / "mine", path)
        case "link":
            path.symlink_to(tmp_path / "mine")
        case "pipe":
            os.mkfifo(path)
    with pytest.raises(OSError, match="lock"):
        lock_of(path)
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("way", ["link", "link-of-a-folder", "dots"])
def test_what_a_folder_names_stays_in_it(way, tmp_path):
    folder = tmp_path / "received"
    (folder / "below").mkdir(parents=True)
    (tmp_path / "mine").touch()
    (folder / "link").symlink_to("../mine")
    (folder / "link-of-a-folder").symlink_to("..")
    (folder / "good").symlink_to("below")
    assert inside(folder, folder / "good") == folder / "good"
    place = {
        "link": "link",
        "link-of-a-folder": "link-of-a-folder/mine",
        "dots": "../mine",
    }[way]
    with pytest.raises(ValueError, match="leads out of it"):
        inside(folder, folder / place)
