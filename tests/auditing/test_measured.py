"""An ε that was not measured is never a number, and the reason is said with its counts."""

import re
import warnings

import numpy as np
import pytest
from records import make_record, record_of

from fl_epe import RoundFacts, RunAuditor, epsilon_from_record
from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    STATISTICS,
    Adversary,
    AuditRecord,
    CanaryCosines,
    ClientLog,
    Mechanism,
    NotMeasured,
    Provenance,
    ServerStep,
    answer,
    scores_of,
    seen_by,
)
from fl_epe.auditing.claims.score_file import bare_scores, summarize_scores
from fl_epe.auditing.recorder.round_scores import record_from_scorer
from fl_epe.canaries import CanaryScorer, CanarySet
from fl_epe.schedules import ParticipationLaw

NOBODY = {"presence": np.zeros((6, 40), bool)}
UNMEASURED = {
    "no-canaries": (lambda: record_of(0), "no canary took part in 6 rounds"),
    "one-canary": (
        lambda: record_of(1),
        "only 1 canary took part in 6 rounds; .* at least 2",
    ),
    "one-round": (lambda: record_of(0, 1), "no canary took part in 1 round$"),
    "no-rounds": (lambda: record_of(40, 0), "the audit saw no round"),
    "neither": (lambda: record_of(0, 0), "the audit saw no round"),
    "nobody": (
        lambda: make_record(**NOBODY),
        "no canary took part in 6 rounds",
    ),
    "silent": (
        lambda: make_record(contributions=np.zeros(6)),
        "none of the 40 canaries that took part in 6 rounds added anything to the model",
    ),
    "clipped-to-0": (
        lambda: make_record(clip_norms=np.zeros(6)),
        "none of the 40 canaries that took part in 6 rounds added anything to the model",
    ),
    "told": (
        lambda: make_record(
            presence=np.zeros((6, 40), bool),
            missing_canaries_reason="0 of 12 clients answered.",
        ),
        "^0 of 12 clients answered$",
    ),
}


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("kind", UNMEASURED)
def test_no_statistic_of_an_unmeasured_run_has_a_number(
    kind: str, statistic: str
):
    make, reason = UNMEASURED[kind]
    with pytest.raises(NotMeasured, match=reason):
        scores_of(seen_by(make(), STATISTICS[statistic]), statistic)
    with pytest.raises(NotMeasured, match=reason):
        epsilon_from_record(
            make(), adversary=STATISTICS[statistic], statistic=statistic
        )


@pytest.mark.parametrize("sees", ["final", "all"])
@pytest.mark.parametrize("kind", UNMEASURED)
def test_nor_has_an_answer(kind: str, sees: str):
    make, reason = UNMEASURED[kind]
    found = answer(make(), Adversary(sees))
    assert (found.estimate, found.proved, found.fit) == (None, None, None)
    assert re.search(reason, found.reason)


def test_two_canaries_are_enough():
    record = record_of(2)
    for sees in ("final", "all"):
        assert np.isfinite(
            epsilon_from_record(record, adversary=Adversary(sees)).epsilon
        )


def test_one_silent_round_is_no_reason():
    contributions = np.array([0.0, 0.0, 0.0, 0.0, 0.1, 0.1])
    assert (
        epsilon_from_record(
            make_record(contributions=contributions), adversary=EVERY_ROUND
        ).high
        > 0
    )
    assert (
        epsilon_from_record(
            make_record(contributions=np.full(6, np.nan)), adversary=EVERY_ROUND
        ).high
        > 0
    )


@pytest.mark.parametrize(
    ("changes", "sees", "statistic", "reason"),
    [
        pytest.param(
            {"norms.displacement": 0.0},
            "final",
            "displacement",
            "equal to the initial",
            id="stuck",
        ),
        pytest.param({"norms.final": 0.0}, "final", "model", "is 0", id="zero"),
        pytest.param(
            {
                "norms.final": np.nan,
                "norms.displacement": np.nan,
                "observed.final": np.full(40, np.nan),
                "observed.displacement": np.full(40, np.nan),
            },
            "final",
            "displacement",
            "is not finite",
            id="nan",
        ),
        pytest.param(
            {"norms.means": np.zeros(6)},
            "all",
            "matched-filter",
            "not move in the 6",
            id="idle",
        ),
    ],
)
def test_a_model_that_shows_nothing_is_the_reason(
    changes, sees, statistic, reason
):
    record = make_record(**changes)
    with pytest.raises(NotMeasured, match=reason):
        scores_of(seen_by(record, Adversary(sees)), statistic)
    other = "all" if sees == "final" else "final"
    assert np.isfinite(
        epsilon_from_record(record, adversary=Adversary(other)).epsilon
    )


@pytest.mark.parametrize("rounds", [0, 1, 4])
@pytest.mark.parametrize("present", [0, 1])
def test_an_auditor_that_saw_too_few_canaries_has_a_record(
    rounds: int, present: int, tmp_path
):
    auditor = RunAuditor(5, 3, seed=1, delta=0.01)
    auditor.begin(np.zeros(100))
    for t in range(rounds):
        facts = RoundFacts(
            range(present), contribution=0.1, clip_norm=1.0, replies=10
        )
        auditor.observe(np.full(100, t + 1.0), facts)
    with warnings.catch_warnings(action="error"):
        record = auditor.record()
    loaded = AuditRecord.load(record.save(tmp_path / "record.npz"))
    seen = present if rounds else 0
    assert (loaded.rounds, loaded.num_canaries, loaded.unobserved.count) == (
        rounds,
        seen,
        8 - seen,
    )
    assert loaded.mechanism.canary_participations == (rounds if seen else 0)
    with pytest.raises(
        NotMeasured, match="saw no round" if not rounds else "took part in"
    ):
        epsilon_from_record(loaded)


def test_a_final_model_with_nan_has_a_record(tmp_path):
    scorer = CanaryScorer(CanarySet(50, 6, seed=1))
    rng = np.random.default_rng(0)
    for _ in range(3):
        scorer.add("mean", rng.standard_normal(50))
    final = np.ones(50)
    final[7] = np.inf
    record = record_from_scorer(
        scorer,
        np.arange(4),
        start=np.zeros(50),
        final=final,
        delta_norms=np.ones(3),
        presence=np.ones((3, 4), bool),
        delta=0.1,
        mechanism=Mechanism(
            10,
            1.0,
            1.0,
            ParticipationLaw(3),
            3,
            ServerStep("sgd", np.ones(3)),
            np.ones(3),
        ),
        clients=ClientLog(),
        metrics={},
        provenance=Provenance(),
    )
    loaded = AuditRecord.load(record.save(tmp_path / "record.npz"))
    assert isinstance(loaded.observed, CanaryCosines)
    assert np.isnan(loaded.norms.final)
    assert epsilon_from_record(loaded, adversary=EVERY_ROUND).epsilon >= 0
    with pytest.raises(NotMeasured, match="the final model is not finite"):
        epsilon_from_record(loaded, adversary=FINAL_MODEL)


@pytest.mark.parametrize(
    ("observed", "unobserved", "dim", "reason"),
    [
        pytest.param(
            [],
            [1.0, 2.0],
            None,
            "no score of a canary that took part",
            id="k=0",
        ),
        pytest.param(
            [3.0],
            [1.0, 2.0],
            None,
            "only 1 score of a canary that took",
            id="k=1",
        ),
        pytest.param(
            [0.1],
            None,
            100,
            "only 1 score of a canary that took part",
            id="cosine",
        ),
        pytest.param(
            [1.0, 2.0],
            [0.5],
            None,
            "only 1 score of a canary that did not",
            id="u=1",
        ),
    ],
)
def test_too_few_bare_scores(observed, unobserved, dim, reason):
    with pytest.raises(NotMeasured, match=reason):
        summarize_scores(bare_scores(observed, unobserved, dim), 0.1)
