"""One round's DP: clipping, noise, clip norms, server optimizers."""

import numpy as np
import pytest
from naive_clip import clip
from scipy import stats

from fl_epe.mechanism import (
    AdaptiveClip,
    FixedClip,
    ServerAdam,
    ServerOptimizer,
    ServerSGD,
    gaussian_noise,
    norm,
    sgd_weights,
)

RNG = np.random.default_rng(0)
ODD_UPDATES = {
    "huge": np.full(50, 1e38, np.float32),
    "largest": np.full(50, np.finfo(np.float32).max),
    "tiny": np.full(50, 1e-40, np.float32),
    "zero": np.zeros(50, np.float32),
    "nan": np.full(50, np.nan, np.float32),
    "infinite": np.full(50, np.inf, np.float32),
    "one-nan": np.where(np.arange(50) == 7, np.nan, 1).astype(np.float32),
    "0-d": np.float32(50.0) * np.ones((), np.float32),
    "integer": np.full(50, 10**6),
    "ordinary": RNG.standard_normal(50).astype(np.float32) * 100,
}


@pytest.mark.parametrize("clip_norm", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("name", ODD_UPDATES)
def test_replacing_one_client_by_nothing_moves_the_sum_by_at_most_the_clip_norm(
    name, clip_norm
):
    rest_of_sum = np.random.default_rng(1).standard_normal(50)
    clipped, _ = clip(ODD_UPDATES[name], clip_norm)
    with_it = rest_of_sum + (0 if clipped is None else clipped)
    # rounding of the float64 sum itself: 50 coordinates of ulp 2^-52 × |rest_of_sum| or × clip_norm
    assert (
        np.linalg.norm(with_it - rest_of_sum) <= clip_norm * (1 + 1e-14) + 1e-14
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("nan", id="nan"),
        pytest.param("infinite", id="infinite"),
        pytest.param("one-nan", id="one-nan"),
        pytest.param("0-d", id="0-d"),
        pytest.param("integer", id="integer"),
    ],
)
def test_what_cannot_be_clipped_is_absent(name):
    assert clip(ODD_UPDATES[name], 1.0) == (None, False)


def test_long_updates_get_the_clip_norm_and_short_ones_stay():
    long, unclipped = clip(ODD_UPDATES["ordinary"], 2.0)
    assert not unclipped
    assert norm(long) == pytest.approx(2.0, rel=1e-6)
    short, unclipped = clip(ODD_UPDATES["ordinary"], 1e9)
    assert unclipped
    np.testing.assert_allclose(
        short, ODD_UPDATES["ordinary"], rtol=0, atol=1e9 * 2**-31
    )


def test_sums_of_clipped_updates_have_the_same_bits_in_any_order():
    rng = np.random.default_rng(3)
    raw = rng.standard_normal((500, 40)).astype(np.float32) * rng.lognormal(
        0, 3, (500, 1)
    )
    updates = [clip(update, 0.37)[0] for update in raw]
    forward = sum(updates)
    halves = sum(updates[250:][::-1]) + sum(updates[:250])
    assert np.array_equal(forward, halves)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, np.nan, np.inf])
def test_refuses_clip_norms(clip_norm):
    with pytest.raises(ValueError, match=f"clip_norm={clip_norm}"):
        clip(np.ones(3, np.float32), clip_norm)


def test_noise_has_its_standard_deviation():
    noise = gaussian_noise(np.random.default_rng(1), 200_000, 0.7)
    assert stats.kstest(noise / 0.7, "norm").pvalue > 1e-3
    assert not gaussian_noise(np.random.default_rng(1), 5, 0.0).any()


@pytest.mark.parametrize("start", [0.05, 20.0])
@pytest.mark.parametrize("noisy", [False, True])
def test_adaptive_norm_converges_to_the_median(start, noisy):
    rng = np.random.default_rng(4)
    norms = rng.lognormal(0.3, 0.5, 1000)
    median = float(np.median(norms))
    rule = AdaptiveClip(
        start * median, 0.5, 0.2, 100 / 20 if noisy else 0.0, 100
    )
    clip_norm = rule.init()
    trail = []
    for _ in range(60):
        cohort = rng.choice(norms, 100, replace=False)
        clip_norm = rule.update(
            clip_norm, float(np.sum(cohort <= clip_norm)), 100, rng
        )
        trail.append(clip_norm)
    assert trail[-1] == pytest.approx(median, rel=0.1)


def test_adaptive_norm_moves_as_published():
    rule = AdaptiveClip(1.0, 0.5, 0.2, 0.0, 10)
    assert rule.update(1.0, 10, 10, RNG) == pytest.approx(
        np.exp(-0.1)
    )  # nobody clipped: down
    assert rule.update(1.0, 0, 10, RNG) == pytest.approx(
        np.exp(0.1)
    )  # everybody clipped: up


def test_one_vote_more_or_less_moves_the_released_count_by_a_half():
    rule = AdaptiveClip(1.0, 0.5, 0.2, 0.0, 10)

    def released(unclipped, voted):
        return -np.log(rule.update(1.0, unclipped, voted, RNG)) / 0.2 * 10

    for unclipped, voted in ((3, 9), (0, 1), (9, 9)):
        for with_one in (
            released(unclipped + 1, voted + 1),
            released(unclipped, voted + 1),
        ):
            assert abs(with_one - released(unclipped, voted)) == pytest.approx(
                0.5
            )
    assert (
        rule.update(1.0, 0, 0, RNG) == 1.0
    )  # a round that was lost moves nothing


def test_budget_is_split_as_published():
    rule = AdaptiveClip(1.0, 0.5, 0.2, 3.0, 10)
    z_sum = rule.sum_noise_multiplier(0.5)
    assert z_sum**-2 + (2 * 3.0) ** -2 == pytest.approx(0.5**-2)
    assert rule.sum_noise_multiplier(0.0) == 0.0
    assert FixedClip(1.0).sum_noise_multiplier(0.5) == 0.5
    with pytest.raises(
        ValueError, match=r"noise_multiplier=7 < 2 \* count_std=3.0"
    ):
        rule.sum_noise_multiplier(7)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_linear_with_the_stated_weights(momentum):
    optimizer = ServerSGD(0.3, momentum)
    means = np.random.default_rng(0).standard_normal((12, 4))
    state = optimizer.init(4)
    moved = np.zeros(4)
    for t, mean in enumerate(means):
        state, step = optimizer.update(state, mean, t)
        moved = moved + step
    np.testing.assert_allclose(
        moved, sgd_weights(np.full(12, 0.3), momentum) @ means, rtol=1e-12
    )


@pytest.mark.slow
def test_adam_equals_torch():
    torch = pytest.importorskip("torch")
    means = np.random.default_rng(0).standard_normal((9, 4))
    parameter = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.Adam([parameter], lr=0.02, betas=(0.9, 0.99), eps=1e-3)
    ours: ServerOptimizer = ServerAdam(0.02)
    moved = np.zeros(4)
    state = ours.init(4)
    for t, mean in enumerate(means):
        parameter.grad = torch.tensor(-mean)
        theirs.step()
        state, step = ours.update(state, mean, t)
        moved = moved + step
    np.testing.assert_allclose(moved, parameter.detach().numpy(), rtol=1e-9)


def test_updates_change_nothing_in_place():
    for optimizer in (ServerSGD(0.1, 0.9), ServerAdam()):
        state = optimizer.init(3)
        before = {key: value.copy() for key, value in state.items()}
        optimizer.update(state, np.ones(3), 0)
        assert all(np.array_equal(state[key], before[key]) for key in state)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: FixedClip(0), "norm=0", id="norm=0"),
        pytest.param(
            lambda: AdaptiveClip(1, 1.0, 0.2, 0, 1),
            "quantile=1.0",
            id="quantile=1.0",
        ),
        pytest.param(
            lambda: AdaptiveClip(1, 0.5, 0.2, -1, 1),
            "count_std=-1",
            id="count_std=-1",
        ),
        pytest.param(
            lambda: AdaptiveClip(1, 0.5, 0.2, 0, 0), "voters=0", id="voters=0"
        ),
        pytest.param(
            lambda: ServerSGD(-1.0),
            "learning_rate=-1.0",
            id="learning_rate=-1.0",
        ),
        pytest.param(
            lambda: ServerSGD(1.0, 1.0), "momentum=1.0", id="momentum=1.0"
        ),
        pytest.param(
            lambda: ServerAdam(0.0),
            "learning_rate=0.0",
            id="adam-learning_rate=0.0",
        ),
    ],
)
def test_refuses_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
