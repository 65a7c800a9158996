"""`simulations/nasr_2023/dp_sgd_steps.py`, the smallest forms."""

import re

import pytest

from simulations.nasr_2023 import dp_sgd_steps

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning"
)

UNSEEN = ("ghost clipping", "smoothed", "smoothed, Adam", "signs")
SLOW = ("batches of 4", "accounted 2, drawn 4")  # hundreds of steps


def kinds(table):
    """Names as test case ids have them, slow ones marked."""
    cases = []
    for name in table:
        marks = [pytest.mark.slow] if name in SLOW else []
        cases.append(
            pytest.param(
                name, marks=marks, id=re.sub(r"[^A-Za-z0-9]+", "-", name)
            )
        )
    return cases


@pytest.mark.slow
@pytest.mark.parametrize("name", kinds(dp_sgd_steps.RIGHT))
def test_right_steps_have_no_fault_and_are_seen(name):
    findings = dp_sgd_steps.audited(
        dp_sgd_steps.RIGHT[name], 0, canaries=50
    ).findings
    assert findings.faults == ()
    assert bool(findings.unseen) == (name in UNSEEN)


WORDS = {
    "moves by the clipped sum": "moves by a gradient without noise, in 46 of 46",
    "the same, Adam": "moves by a gradient without noise, in 46 of 46",
    "moves by the exact mean": "moves by a gradient without noise, in 46 of 46",
    "the exact mean, Adam": "moves by a gradient without noise, in 46 of 46",
    "by hand, by the mean": "moves by a gradient without noise, in 46 of 46",
    "by the mean as well": "not seen: what changed the model between steps, 45 times",
    "by a tenth of the noise": "not seen: what moves the model in 46 of 46 steps",
    "noise on touched rows": r"0 times its scale in [\d,]+ entries where no gradient is",
    "norm of biases only": r"up to [2-9]\.\d+ times as long as the clip norm, in 46 of 46",
    "each tensor clipped": r"up to 2 times as long as the clip norm, in 46 of 46",
    "the mean clipped": "the sum or the mean of a batch: all its gradients have one factor",
    "weights after clipping": r"up to 1\.\d+ times as long as the clip norm, in 46 of 46",
    "accounted 2, drawn 4": "examples on average, where .* one expect 2",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", kinds(dp_sgd_steps.BROKEN))
def test_a_broken_step_is_named(name):
    audit = dp_sgd_steps.audited(dp_sgd_steps.BROKEN[name], 0)
    assert re.search(WORDS[name], dp_sgd_steps.said(audit))
    infinite = "0 times" in WORDS[name] or "without noise" in WORDS[name]
    assert (audit.findings.unbounded is not None) == infinite
    assert (
        audit.record().findings.unchecked_assumptions == audit.findings.unseen
    )


def test_a_plain_step_by_the_exact_mean():
    audit = dp_sgd_steps.plain()
    assert "without noise, in 20 of 20" in dp_sgd_steps.said(audit)
    with pytest.raises(ValueError, match="so ε of every round is infinite"):
        audit.epsilon()
