"""Lower bounds: the contract that all of them keep, their validity by simulation, the defaults."""

import inspect
import math
import re
from pathlib import Path

import numpy as np
import pytest
from gaussian_scores import ALPHA, DELTA, DIM, bound_of, gaussian_scores
from scipy import stats

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing import epsilon_lower_bound
from fl_epe.auditing.bounds import (
    BOUNDS,
    error_rates,
    guessing,
    lifted,
    thresholds,
    weighted,
)
from fl_epe.auditing.bounds.error_rates import Sample

COINS = {"one-run"}


GUIDE = Path(__file__).parents[2] / "docs/guides/scores.md"
VALID = [name for name, bound in BOUNDS.items() if bound.valid]


FREE = [
    "clopper-pearson",
    "lifted",
    "simultaneous",
    "weighted",
]  # of any distribution


def _check_share(failures, trials, most=ALPHA):
    """At most that share of failures, give or take three standard errors."""
    assert failures / trials <= most + 3 * math.sqrt(most * (1 - most) / trials)


# The contract.


def test_a_function_from_a_sample_to_epsilon_is_a_bound_by_name():
    """Who writes one and forgets its entry is told."""
    skipped = {"joint_alpha"}  # a level, and no ε
    written = {
        function
        for module in (error_rates, guessing, lifted, thresholds, weighted)
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        if not name.startswith("_") and name not in skipped
        if [*inspect.get_annotations(function, eval_str=True).items()][:1]
        == [("sample", Sample)]
        if inspect.get_annotations(function, eval_str=True)["return"] is float
    }
    assert written == {bound.compute for bound in BOUNDS.values()}


@pytest.mark.parametrize("method", BOUNDS)
def test_says_nothing_about_tied_scores(method):
    assert bound_of(method, np.full(50, 0.1), np.full(40, 0.1)) == 0.0
    if method not in COINS:
        assert bound_of(method, np.zeros(50), None, dim=DIM) == 0.0


@pytest.mark.parametrize("method", sorted(BOUNDS.keys() - COINS))
def test_equal_cosines_that_are_not_0_are_evidence(method):
    """As of canaries that nothing hides."""
    assert bound_of(method, np.full(50, 0.9), None, dim=DIM) > 4000
    assert bound_of(method, np.ones(50), None, dim=DIM) > 5000


@pytest.mark.slow
@pytest.mark.parametrize("method", BOUNDS)
@pytest.mark.parametrize("step", [0.0, 0.5], ids=["continuous", "ties"])
def test_the_order_of_scores_does_not_matter(method, step):
    groups = gaussian_scores(1.5, 150, 24)
    if step:
        groups = tuple(step * np.round(group / step) for group in groups)
    orders = [groups, [np.sort(g) for g in groups], [g[::-1] for g in groups]]
    assert len({bound_of(method, *order) for order in orders}) == 1
    if method not in COINS:
        assert (
            len({bound_of(method, g / 100, None, dim=DIM) for g, _ in orders})
            == 1
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "count", "runs"),
    [
        ("weighted", 1710, 30),
        pytest.param("one-run", 1490, 400, marks=pytest.mark.slow),
    ],
)
def test_ties_are_not_broken_alike_in_all_data_sets_of_a_size(
    method, count, runs
):
    """Randomised response at ε = 0.5: once above it in 57% and 26% of runs of these sizes."""
    chances, failures = (0.62246, 0.37754), 0
    for run in range(runs):
        rng = np.random.default_rng((25, run))
        here = (
            count if method == "weighted" else int(rng.binomial(2 * count, 0.5))
        )
        sizes = (here, 2 * count - here)
        here, there = (
            1.0 * (rng.random(n) < p)
            for n, p in zip(sizes, chances, strict=True)
        )
        failures += BOUNDS[method](here, there, 0.0) > 0.5
    _check_share(failures, runs)


@pytest.mark.parametrize("method", BOUNDS)
def test_pure_dp_is_bounded_without_a_gaussian(method):
    """δ = 0 is refused where every Gaussian mechanism has ε = ∞, and the limit of δ elsewhere."""
    scores = gaussian_scores(2.0, 200, 26)
    if BOUNDS[method].gaussian:
        with pytest.raises(
            ValueError, match=r"Expected delta=0.0 > 0: Gaussian noise"
        ):
            BOUNDS[method](*scores, 0.0)
    else:
        pure, almost = (
            BOUNDS[method](*scores, delta) for delta in (0.0, 1e-12)
        )
        assert pure == pytest.approx(almost, abs=1e-3)
        assert pure >= almost


@pytest.mark.parametrize("method", BOUNDS)
def test_survives_few_and_partly_tied_scores(method):
    for observed, unobserved in (
        ([0.0, 1.0], [0.0, 1.0]),
        ([1.0, 1.0, 2.0], [0.0, 0.0, 1.0]),
    ):
        assert 0 <= bound_of(method, observed, unobserved) < np.inf
        if method not in COINS:
            assert (
                0
                <= bound_of(method, np.array(observed) / 100, None, dim=DIM)
                < np.inf
            )


@pytest.mark.parametrize("method", BOUNDS)
def test_finds_a_strong_signal_and_not_its_mirror_image(method):
    observed, unobserved = gaussian_scores(3.0, 300, 1)
    assert 1.5 < bound_of(method, observed, unobserved) < np.inf
    assert bound_of(method, -observed, -unobserved) == 0.0
    if method not in COINS:
        cosines = observed / np.sqrt(DIM)
        assert 1.5 < bound_of(method, cosines, None, dim=DIM) < np.inf
        assert bound_of(method, -cosines, None, dim=DIM) == 0.0


@pytest.mark.parametrize("method", BOUNDS)
def test_scale_and_origin_of_scores_do_not_matter(method):
    observed, unobserved = gaussian_scores(1.5, 100, 2)
    plain = bound_of(method, observed, unobserved)
    assert plain == pytest.approx(
        bound_of(method, 8 * observed - 1, 8 * unobserved - 1), rel=1e-6
    )


@pytest.mark.parametrize(
    "method", sorted(BOUNDS.keys() - {"lifted"})
)  # test_lifted.py has it
def test_more_confidence_says_less(method):
    observed, unobserved = gaussian_scores(1.5, 200, 3)
    more, less = (
        bound_of(method, observed, unobserved, confidence=c)
        for c in (0.9999, 0.8)
    )
    assert 0 < more < less


def test_every_method_says_what_it_assumes():
    assert all(bound.assumption and bound.theorem for bound in BOUNDS.values())


# Validity, by simulation.


@pytest.mark.slow
@pytest.mark.parametrize("method", VALID)
@pytest.mark.parametrize(
    "shift", [0.0, pytest.param(1.0, marks=pytest.mark.slow)]
)
def test_exceeds_the_truth_for_gaussians_no_more_often_than_it_says(
    method, shift
):
    truth = epsilon_two_gaussians(0, 1, shift, 1, DELTA)
    trials = range(60)
    failures = [
        bound_of(method, *gaussian_scores(shift, 60, (5, t))) > truth
        for t in trials
    ]
    _check_share(sum(failures), len(failures))


@pytest.mark.parametrize("method", [*FREE, "one-run"])
@pytest.mark.parametrize(
    "epsilon", [0.0, 1.0, pytest.param(3.0, marks=pytest.mark.slow)]
)
@pytest.mark.weekly
def test_exceeds_the_truth_for_randomized_response_no_more_often(
    method, epsilon
):
    """All the evidence that ε allows sits in one bit: the hardest mechanism to stay below."""

    def draw(rng, member):
        return rng.random(60) + (
            rng.random(60) < 1 / (1 + math.exp(-member * epsilon))
        )

    failures = 0
    for trial in range(200):
        rng = np.random.default_rng((6, trial))
        failures += bound_of(method, draw(rng, 1), draw(rng, -1)) > epsilon
    _check_share(failures, 200)


@pytest.mark.slow
@pytest.mark.parametrize("method", FREE)
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_exceeds_the_truth_for_the_farthest_cosines_no_more_often(
    method, epsilon
):
    """Cosines e^ε times as likely as the null's in its top 1/(1 + e^ε), e^−ε times below."""
    top, failures = 1 / (1 + math.exp(epsilon)), 0
    for trial in range(200):
        rng = np.random.default_rng((7, trial))
        high = rng.random(60) < top * math.exp(epsilon)
        null_quantile = np.where(
            high, 1 - top * rng.random(60), (1 - top) * rng.random(60)
        )
        cosines = (
            2 * stats.beta.ppf(null_quantile, (DIM - 1) / 2, (DIM - 1) / 2) - 1
        )
        failures += bound_of(method, cosines, None, dim=DIM) > epsilon
    _check_share(failures, 200)


def test_published_sweep_is_not_valid():
    """Else the word "valid" in the table would mean little."""
    positive = [
        bound_of("jeffreys", *gaussian_scores(0.0, 60, (8, t))) > 0
        for t in range(200)
    ]
    assert np.mean(positive) > 0.1


@pytest.mark.slow
def test_sharper_than_the_peers():
    """The median at μ = 1, δ = 1e-5, 500 + 500 scores: 1.72."""
    bounds = [
        bound_of("weighted", *gaussian_scores(1.0, 500, (9, t)))
        for t in range(25)
    ]
    # Standard deviation of a bound: 0.35; of the median of 25 about a quarter of it.
    assert np.median(bounds) > 1.72 - 3 * 0.35 / 4


# The defaults.


@pytest.mark.slow
def test_the_default_is_a_valid_bound_on_any_scores():
    """At ε = 0 and with the exact null, where the published method fails in 74% of runs."""
    failures = 0
    for trial in range(100):
        observed, unobserved = gaussian_scores(0.0, 100, (21, trial))
        failures += epsilon_lower_bound(observed, unobserved, DELTA) > 0
        failures += (
            epsilon_lower_bound(observed / np.sqrt(DIM), None, DELTA, dim=DIM)
            > 0
        )
    _check_share(failures, 200)


def test_the_default_keeps_its_power_with_many_canaries():
    """1,000 canaries at δ = 0.005, as in the digits task, where "weighted" loses its power."""
    defaults, others = [], []
    for trial in range(5):
        observed, unobserved = gaussian_scores(3.0, 1000, (22, trial))
        defaults.append(epsilon_lower_bound(observed, unobserved, 0.005))
        others.append(
            epsilon_lower_bound(observed, unobserved, 0.005, method="weighted")
        )
        assert epsilon_lower_bound(observed / 100, None, 0.005, dim=DIM) > max(
            defaults
        )
    assert np.median(defaults) > 2 * np.median(others)


def test_the_published_method_says_that_it_is_no_bound():
    observed, unobserved = gaussian_scores(1.0, 60, 23)
    with pytest.warns(UserWarning, match="'jeffreys' is not a bound") as caught:
        found = epsilon_lower_bound(
            observed, unobserved, DELTA, method="jeffreys"
        )
    assert [warning.filename for warning in caught] == [__file__]
    assert found == bound_of("jeffreys", observed, unobserved)


# Bad input.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(
            {"delta": 1.5},
            "Expected delta=1.5 in (0, 1).",
            id="delta=1.5-in-0,1",
        ),
        pytest.param(
            {"delta": -0.1},
            "Expected delta=-0.1 in (0, 1).",
            id="delta=-0.1-in-0,1",
        ),
        pytest.param(
            {"delta": math.nan},
            "Expected delta=nan in (0, 1).",
            id="delta=nan-in-0,1",
        ),
        pytest.param(
            {"confidence": 1.0},
            "Expected confidence=1.0 in (0, 1).",
            id="confidence=1.0-in-0,1",
        ),
        pytest.param(
            {"confidence": math.nan},
            "Expected confidence=nan in (0, 1).",
            id="confidence=nan-in-0,1",
        ),
        pytest.param(
            {"method": "best"},
            "Expected method='best' to be one of jeffreys, ",
            id="method=best-to-be-one-of-jeffreys",
        ),
        pytest.param(
            {"observed": [1.0]},
            "Expected observed.shape=(1,) to be (k,) with k >= 2.",
            id="observed.shape=1,to-be-k,with-k-at-least-2",
        ),
        pytest.param(
            {"observed": []},
            "Expected observed.shape=(0,) to be (k,) with k >= 2.",
            id="observed.shape=0,to-be-k,with-k-at-least-2",
        ),
        pytest.param(
            {"unobserved": [[1.0, 2.0]]},
            "Expected unobserved.shape=(1, 2) to be (k,) with k >= 2.",
            id="unobserved.shape=1,2-to-be-k,with-k-at-least-2",
        ),
        pytest.param(
            {"observed": [1.0, math.nan]},
            "Expected observed=nan to be a number (1 such values).",
            id="observed-to-be-a-number,got-nan-1-such-values",
        ),
        pytest.param(
            {"unobserved": None},
            "Expected unobserved=None to be scores, or dim=None",
            id="unobserved=None-to-be-scores,or-dim",
        ),
        pytest.param(
            {"unobserved": None, "dim": 1},
            "Expected dim=1 >= 2.",
            id="dim=1-at-least-2",
        ),
        pytest.param(
            {"unobserved": None, "dim": 5},
            "Expected observed=3.0 in [-1, 1]",
            id="observed=3.0-in-1,1",
        ),
        pytest.param(
            {
                "unobserved": None,
                "dim": 5,
                "observed": [0.1, 0.2],
                "method": "one-run",
            },
            "Expected unobserved=None to be scores for this method.",
            id="unobserved=None-to-be-scores-for-this-method",
        ),
    ],
)
def test_bad_input_is_named(changes, message):
    arguments = {
        "observed": [1.0, 3.0],
        "unobserved": [0.0, 1.0],
        "delta": DELTA,
        **changes,
    }
    with pytest.raises(ValueError, match=re.escape(message)):
        epsilon_lower_bound(**arguments)


@pytest.mark.parametrize("method", list(BOUNDS))
@pytest.mark.parametrize(
    "exponent", [pytest.param(-1000, marks=pytest.mark.slow), 1020]
)
def test_scores_whose_squares_overflow_or_vanish(method, exponent):
    """Another unit of the scores changes nothing."""
    rng = np.random.default_rng(0)
    groups = rng.normal(3, 1, 200), rng.normal(0, 1, 200)
    found, expected = (
        BOUNDS[method](np.ldexp(groups[0], e), np.ldexp(groups[1], e), 1e-5)
        for e in (exponent, 0)
    )
    assert found == pytest.approx(expected, rel=1e-9)
    assert found > 0


WITH_DELTA = [
    (method, dim)
    for method in BOUNDS
    for dim in (None, 10, 90_000)
    if not (dim and method in COINS)
]


def _slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "dim"), WITH_DELTA)
@pytest.mark.parametrize("shift", [_slow(0.5), 2.0, _slow(6.0)])
@pytest.mark.parametrize("seed", [0, _slow(1), _slow(2)])
def test_no_bound_grows_with_delta(method, dim, shift, seed):
    rng = np.random.default_rng(seed)
    observed, unobserved = rng.normal(shift, 1, 300), rng.normal(0, 1, 300)
    if dim:
        observed = np.tanh(observed / np.sqrt(dim))
    others = None if dim else unobserved
    bounds = [
        BOUNDS[method](observed, others, delta, dim=dim)
        for delta in (1e-9, 1e-5, 1e-3, 0.1)
    ]
    assert bounds == sorted(bounds, reverse=True)


# Few dimensions: the exact null is far from Gaussian, and cosines reach ±1.


def _cosines(dim, count, shift, rng):
    """Cosines of canaries with a release in which each is ``shift`` standard deviations long."""
    noise = rng.normal(size=(count, dim))
    noise[:, 0] += shift
    return noise[:, 0] / np.linalg.norm(noise, axis=1)


# The least, the fewest with a bell-shaped null, and the most; the others are alike.
FEW_DIMENSIONS = [
    dim if dim in (2, 5, 50) else pytest.param(dim, marks=pytest.mark.slow)
    for dim in (2, 3, 5, 10, 24, 50)
]
EXACT = [name for name in BOUNDS if name not in COINS]


@pytest.mark.weekly
@pytest.mark.parametrize("dim", FEW_DIMENSIONS)
@pytest.mark.parametrize(
    "method", [name for name in EXACT if name != "jeffreys"]
)
def test_few_dimensions_without_signal(method, dim):
    """Seldom above 0, and never infinite; with a looser limit if not declared valid."""
    rng = np.random.default_rng(dim)
    bounds = np.array(
        [
            BOUNDS[method](_cosines(dim, 100, 0.0, rng), None, 1e-3, dim=dim)
            for trial in range(60)
        ]
    )
    assert np.all(np.isfinite(bounds))
    _check_share(np.sum(bounds > 0), 60, ALPHA if method in VALID else 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("dim", FEW_DIMENSIONS)
@pytest.mark.parametrize(
    "method", [name for name in EXACT if name not in ("jeffreys", "lifted")]
)
def test_few_dimensions_with_a_signal(method, dim):
    """Each finds it, and none above the ε of the release, from which the cosines follow.

    The bound "lifted" holds under any dependence, and finds so little in no single run.
    """
    rng = np.random.default_rng(dim)
    bounds = [
        BOUNDS[method](_cosines(dim, 200, 2.0, rng), None, 1e-3, dim=dim)
        for trial in range(5)
    ]
    assert 0.8 < np.median(bounds) < epsilon_two_gaussians(0, 1, 2.0, 1, 1e-3)


@pytest.mark.parametrize("dim", [10, 24, 50])
def test_weighted_is_sharp_for_loud_scores_in_few_dimensions(dim):
    cosines = _cosines(dim, 100, 6.0, np.random.default_rng(dim))
    weighted, simultaneous = (
        bound_of(method, cosines, None, dim=dim)
        for method in ("weighted", "simultaneous")
    )
    assert weighted > 0.85 * simultaneous


def test_the_guide_has_a_row_for_each_bound():
    rows = re.findall(r"^\| `([\w-]+)` \|", GUIDE.read_text("utf-8"), re.M)
    assert set(BOUNDS) <= set(rows)
