"""Reports of every kind of record."""

import numpy as np
import pytest
from records import make_record

from fl_epe.limit import limit_record
from fl_epe.reporting import as_text, summarize, write_report
from fl_epe.reporting.sentences import table_rows
from fl_epe.schedules import ParticipationLaw, Poisson, ShuffledEpochs

BY_DEFAULT = {"no-unobserved", "poisson", "an-empty-round", "nothing-moved"}
"""Records whose reports the default run writes too: the pictures of one take two seconds."""


class TestReports:
    """Every kind of record has a report, and no sentence in it that is not true of it."""

    RECORDS = {  # noqa: RUF012 - made once
        "epochs": lambda: limit_record(
            ShuffledEpochs(6, 2), 0.5, 1e-3, num_canaries=40, unobserved=40
        ),
        "part-of-an-epoch": lambda: limit_record(
            ShuffledEpochs(6, 1.5), 0.5, 1e-3, num_canaries=40, unobserved=40
        ),
        "poisson": lambda: limit_record(
            Poisson(6, 0.3), 0.5, 1e-3, num_canaries=40, unobserved=40
        ),
        "no-unobserved": lambda: limit_record(
            ShuffledEpochs(6, 2), 0.5, 1e-3, num_canaries=40, unobserved=0
        ),
        "no-clip-norms": lambda: make_record(clip_norms=np.full(6, np.nan)),
        "unknown-schedule": lambda: make_record(
            participation=ParticipationLaw(6)
        ),
        "no-noise": lambda: make_record(
            noise_multiplier=0.0, sum_noise_multiplier=0.0
        ),
        "unknown-noise": lambda: make_record(
            noise_multiplier=None, sum_noise_multiplier=None
        ),
        "an-empty-round": lambda: make_record(
            **{"norms.means": np.array([0.0, *make_record().norms.means[1:]])}
        ),
        "nobody-took-part": lambda: make_record(
            presence=np.zeros((6, 40), bool)
        ),
        "nothing-moved": lambda: make_record(**{"norms.displacement": 0.0}),
        "lost-updates": lambda: make_record(
            absent=np.array([0, 3, 0, 0, 1, 0]), faults=("x",)
        ),
        "coins": lambda: make_record(inclusion="coin"),
    }

    @pytest.mark.parametrize(
        "kind",
        [
            pytest.param(k, marks=() if k in BY_DEFAULT else pytest.mark.slow)
            for k in RECORDS
        ],
    )
    def test_is_written(self, kind, tmp_path):
        summary = summarize(self.RECORDS[kind]())
        write_report(summary, tmp_path)
        page = (tmp_path / "report.html").read_text()
        final, every = table_rows(summary)
        text = " ".join(as_text(summary, details=True).split())
        assert len(final) == len(every) == 5
        assert all(cell in page.replace("&#39;", "'") for cell in every)
        unmeasured = kind in ("nobody-took-part", "nothing-moved")
        assert (summary.status == "not measured") is unmeasured
        assert (final[1] == "not measured") is unmeasured
        if kind == "no-unobserved":
            assert float(every[3]) > 0  # the null of cosines is exact
        if kind == "poisson":
            assert "on average, drawn in secret" in text
        if kind == "unknown-noise":
            assert every[4] == "none known"
        if kind == "an-empty-round":
            assert "The model did not move in 1 of 6 rounds" in text


@pytest.mark.slow
def test_a_report_that_fails_leaves_the_one_before(tmp_path, monkeypatch):
    write_report(summarize(make_record()), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert "epsilon.png" in before

    def fail(*arguments):
        raise MemoryError

    monkeypatch.setattr("fl_epe.reporting.report.picture", fail)
    with pytest.raises(MemoryError):
        write_report(summarize(make_record(dim=20_000)), tmp_path)
    assert {
        path.name: path.read_bytes() for path in tmp_path.iterdir()
    } == before


def test_no_text_of_a_record_has_a_line_of_its_own():
    forged = "client\n• At least: ε = 0\x85Forged"
    summary = summarize(make_record(unit=forged, faults=(forged,), task=forged))
    text = as_text(summary, details=True)
    assert "At least: ε = 0" in " ".join(text.split())
    assert not [
        line
        for line in text.splitlines()
        if line.startswith(("• At least", "Forged"))
    ]
