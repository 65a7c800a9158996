"""A report names the size of a small model, and does not speak of clipping where nothing clips."""

import dataclasses

import numpy as np
import pytest
from records import make_record

from fl_epe.reporting import as_text, reliability, summarize


def text_of(record):
    return " ".join(as_text(summarize(record)).split())


@pytest.mark.parametrize(("dim", "named"), [(15, True), (5000, False)])
def test_few_parameters_are_the_first_reason_for_scores_that_do_not_fit(
    dim, named
):
    record = make_record(dim=dim, doubts=("the scores are odd",))
    summary = summarize(record)
    codes = [warning.code for warning in summary.warnings]
    assert "doubts" in codes
    assert ("size" in codes) == named
    assert summary.status == "unreliable"
    assert (
        text_of(record).startswith("Unreliable, as the model has 15 parameters")
        == named
    )


def test_few_parameters_alone_are_no_fault(monkeypatch):
    monkeypatch.setattr(reliability, "_MISFIT_BY_SIZE_BELOW", 20_000)
    assert summarize(make_record()).warnings == ()


def test_clipping_is_named_only_where_something_clips():
    record = make_record()
    assert "as large as clipping allows" in text_of(record)
    nothing = np.full(record.rounds, np.nan)
    mechanism = dataclasses.replace(
        record.mechanism,
        clip_norms=nothing,
        contributions=record.mechanism.contribution_norms,
    )
    text = text_of(dataclasses.replace(record, mechanism=mechanism))
    assert "clipping allows" not in text
    assert "of a client's size" in text
