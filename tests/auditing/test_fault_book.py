"""The one book in which faults are counted."""

import re
from pathlib import Path

import pytest

import fl_epe
from fl_epe.auditing import FaultBook, FaultKind


def full(book: FaultBook) -> FaultBook:
    """The book after 250 rounds, in each of which two clients were silent and one failed."""
    for index in range(250):
        book.add(index, FaultKind.NO_ANSWER, "two did not answer", times=2)
        book.add(index, FaultKind.CLIENT_FAILED, "client 3:\nno memory")
    return book


def test_everything_is_counted_and_the_first_hundred_are_told():
    book = full(FaultBook())
    assert book.counts == {"no answer in time": 500, "client failed": 250}
    assert book.total == 750
    assert len(book.messages) == 100
    assert book.messages[:2] == [
        "round 1, two did not answer",
        "round 1, client 3: no memory",
    ]
    values = book.values()
    assert values == {
        "faults": tuple(book.messages),
        "fault_counts": book.counts,
    }
    assert full(FaultBook("step")).messages[0] == "step 1, two did not answer"


def test_the_first_fault_of_a_kind_is_always_told():
    book = full(FaultBook())
    assert book.first(FaultKind.AUDIT_STOOD_BACK) is None
    for index in (250, 251):
        book.add(
            index, FaultKind.AUDIT_STOOD_BACK, "the model could not be read"
        )
    assert book.messages[100:] == ["round 251, the model could not be read"]
    kinds = FaultKind.AUDIT_STOOD_BACK, FaultKind.CANARY_UNUSED
    assert book.first(*kinds) == "round 251, the model could not be read"


@pytest.mark.parametrize("rounds", [250, 10, 0], ids=["all", "some", "none"])
def test_a_book_goes_on_from_the_first_rounds_of_a_state(rounds):
    again = FaultBook()
    again.restore(full(FaultBook()).state(), rounds)
    assert again.total == 3 * rounds
    assert again.messages == full(FaultBook()).messages[: 2 * rounds]


def test_what_went_wrong_since_the_start_comes_after_what_was_saved():
    saved = FaultBook()
    again = FaultBook()
    saved.add(0, FaultKind.NODE_LEFT, "node 3: it left")
    again.add(0, FaultKind.NODE_LEFT, "node 3: it left")
    again.add(1, FaultKind.AUDIT_STOOD_BACK, "the log is gone")
    again.restore(saved.state(), 1)
    assert again.counts == {"node left": 1, "audit stood back": 1}
    assert again.messages == [
        "round 1, node 3: it left",
        "round 2, the log is gone",
    ]


def test_no_other_file_counts_faults_by_kind():
    """Each engine once had a counter and a limit of its own."""
    for path in Path(fl_epe.__file__).parent.rglob("*.py"):
        if path.name != "faults.py":
            assert not re.search(
                r"fault\w*\[[^\]]*\] \+=|FAULTS_KEPT", path.read_text("utf-8")
            ), path
