"""What a schedule's theorems promise."""

import math

import numpy as np
import pytest
from scipy import stats

from fl_epe.accounting import (
    delta_two_gaussians,
    fixed_size_epsilon,
    gaussian_epsilon,
    hidden_rounds_epsilon,
    poisson_epsilon,
    strategy_bounds,
    tightest,
    upper_bounds,
)
from fl_epe.accounting.composed_gaussians import random_participations_epsilon
from fl_epe.schedules import (
    Capped,
    Poisson,
    Trace,
    make_schedule,
    parse_schedule,
    presence,
)
from fl_epe.schedules.composed import DropOut
from fl_epe.schedules.sampled import FixedSize

T, CLIENTS, DELTA = 40, 200, 1e-4


def _schedule(spec, participations=4):
    kind, options = parse_schedule(spec)
    return make_schedule(kind, T, participations, **options)


def _bounds(spec, z=0.5, participations=4):
    found = upper_bounds(_schedule(spec, participations).law(CLIENTS), z, DELTA)
    names = {True: "known", False: "unknown"}
    return {
        "limit"
        if not bound.averages
        else names[bound.rounds_known]: bound.epsilon
        for bound in found
    }


class TestRandomParticipations:
    def test_a_certain_number_is_the_gaussian_mechanism(self):
        for count in (1, 3):
            epsilon = random_participations_epsilon(
                0.7, DELTA, np.eye(5)[count]
            )
            assert epsilon == pytest.approx(
                gaussian_epsilon(0.7, DELTA, count), rel=1e-8
            )

    def test_delta_is_the_mean_of_deltas(self):
        weights = np.array([0.2, 0.5, 0.3])
        epsilon = random_participations_epsilon(0.7, DELTA, weights)
        shifts = np.sqrt([1, 2]) / 0.7
        delta = weights[1:] @ np.asarray(
            delta_two_gaussians(0, 1, shifts, 1, epsilon)
        )
        assert delta == pytest.approx(DELTA, rel=1e-6)

    def test_rare_participation_costs_nothing(self):
        assert random_participations_epsilon(0.1, 0.01, [0.995, 0.005]) == 0
        assert random_participations_epsilon(0.0, 0.01, [0.995, 0.005]) == 0
        assert random_participations_epsilon(0.0, 0.01, [0.5, 0.5]) == math.inf

    def test_tails_are_cut_on_the_safe_side(self):
        pmf = stats.binom.pmf(np.arange(2001), 2000, 0.002)
        pmf /= pmf.sum()
        epsilon = random_participations_epsilon(0.4, DELTA, pmf)
        shifts = np.sqrt(np.arange(1, 2001)) / 0.4
        exact = pmf[1:] @ np.asarray(
            delta_two_gaussians(0, 1, shifts, 1, epsilon)
        )
        assert 0.998 * DELTA < exact <= DELTA

    def test_errors(self):
        with pytest.raises(ValueError, match="weights"):
            random_participations_epsilon(1.0, DELTA, [-0.5, 1.5])


class TestGuarantees:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("spec", "most"),
        [
            ("epochs", 4),
            ("cyclic", 4),
            ("balls-in-bins", 4),
            ("min-separation:separation=8", 5),
            ("capped:of=poisson,per_run=6", 6),
            ("drop-out:of=epochs,rate=0.2", 5),
        ],
    )
    def test_limits_give_the_gaussian_mechanism(self, spec, most):
        assert _bounds(spec)["limit"] == gaussian_epsilon(0.5, DELTA, most)

    def test_coins_have_the_accountant_and_a_count(self):
        bounds = _bounds("poisson")
        assert bounds["unknown"] == poisson_epsilon(0.5, 0.1, T, DELTA)
        pmf = stats.binom.pmf(np.arange(T + 1), T, 0.1)
        assert bounds["known"] == pytest.approx(
            random_participations_epsilon(0.5, DELTA, pmf / pmf.sum())
        )

    def test_drop_out_of_coins_is_coins(self):
        assert _bounds("drop-out:of=poisson,rate=0.2") == pytest.approx(
            _bounds("poisson")
        )

    def test_device_classes_are_for_the_busiest(self):
        spec = 'device-classes:{"rates": [4, 1], "shares": [0.25, 0.75]}'
        busiest = max(_schedule(spec).rates)
        assert _bounds(spec)["unknown"] == poisson_epsilon(
            0.5, busiest, T, DELTA
        )

    def test_fixed_size(self):
        bounds = _bounds("fixed-size")
        assert bounds["unknown"] == fixed_size_epsilon(
            0.5, CLIENTS, 20, T, DELTA
        )
        assert bounds["known"] == pytest.approx(
            _bounds("poisson")["known"], rel=1e-6
        )
        dropped = upper_bounds(
            DropOut(FixedSize(T, 0.1), 0.5).law(CLIENTS), 0.5, DELTA
        )
        assert tightest(dropped, rounds_known=True).epsilon < bounds["known"]

    def test_a_trace_is_limited_by_its_busiest_client(self):
        trace = Trace([0, 1, 2, 2], ["a", "a", "a", "b"])
        busiest, random = upper_bounds(trace.law(2), 0.5, DELTA)
        assert busiest.epsilon == gaussian_epsilon(0.5, DELTA, 3)
        assert random.epsilon == random_participations_epsilon(
            0.5, DELTA, [0, 0.5, 0, 0.5]
        )

    def test_where_nothing_limits_there_are_the_rounds(self):
        bounds = _bounds("min-separation:separation=1")
        assert bounds["limit"] == gaussian_epsilon(0.5, DELTA, T)
        assert bounds["known"] == pytest.approx(
            _bounds("poisson")["known"], rel=1e-6
        )

    @pytest.mark.parametrize("z", [0.3, 1.0, 4.0])
    @pytest.mark.parametrize("rounds", [1, 4, 40])
    def test_everybody_in_every_round_is_one_gaussian_mechanism(
        self, z, rounds
    ):
        every_round = (
            "epochs", "cyclic", "balls-in-bins", "min-separation:separation=1", "poisson",
            "fixed-size",
            "capped:of=poisson,per_run=40", "drop-out:of=epochs,rate=0",
            'device-classes:{"rates": [1, 1], "shares": [0.3, 0.7]}',
        )  # fmt: skip
        exact = gaussian_epsilon(z, DELTA, rounds)
        for spec in every_round:
            kind, options = parse_schedule(spec)
            found = upper_bounds(
                make_schedule(kind, rounds, rounds, **options).law(CLIENTS),
                z,
                DELTA,
            )
            for known in (True, False):
                assert tightest(
                    found, rounds_known=known
                ).epsilon == pytest.approx(exact, rel=1e-9)

    @pytest.mark.parametrize(
        "cap",
        [{"per_run": 39}, {"per_run": T}, {"per_window": 9, "window": 10}],
    )
    def test_a_cap_that_binds_nobody_changes_nothing(self, cap):
        for inner in (Poisson(T, 0.1), DropOut(Poisson(T, 0.2), 0.5)):
            plain, capped = (
                upper_bounds(schedule.law(CLIENTS), 0.5, DELTA)
                for schedule in (inner, Capped(inner, **cap))
            )
            for known in (True, False):
                expected = tightest(plain, rounds_known=known).epsilon
                found = tightest(capped, rounds_known=known).epsilon
                assert found == pytest.approx(expected, rel=1e-6)

    def test_a_cap_on_coins_leaves_the_accountant(self):
        """Whoever is refused takes part in a part of the rounds that the coins gave it."""
        inner, z = Poisson(3, 0.4), 1.0
        schedule = Capped(inner, per_run=1)
        bound = tightest(
            upper_bounds(schedule.law(CLIENTS), z, 0.01), rounds_known=False
        )
        rng = np.random.default_rng(5)
        patterns = presence(schedule, 4000, rng).T.astype(float)
        patterns, shares = np.unique(patterns, axis=0, return_counts=True)
        noise = z * rng.standard_normal((200_000, 3))
        epsilon = bound.epsilon
        for scores in (noise, noise + presence(schedule, 200_000, rng).T):
            ratio = np.exp(
                scores @ patterns.T / z**2 - patterns.sum(axis=1) / 2 / z**2
            )
            loss = np.log(ratio @ shares / shares.sum()) * (
                1 if scores is not noise else -1
            )
            gains = np.maximum(-np.expm1(epsilon - loss), 0)
            error = gains.std() / math.sqrt(len(gains))
            assert gains.mean() <= 0.01 + 3 * error

    def test_known_rounds_hold_for_unknown_ones(self):
        found = upper_bounds(_schedule("poisson").law(CLIENTS), 0.5, DELTA)
        assert tightest(found, rounds_known=True).rounds_known
        assert tightest(found, rounds_known=False).epsilon == min(
            bound.epsilon for bound in found
        )

    def test_counts_cover_what_a_simulation_does(self):
        # Everybody's rounds known: δ(ε) of an average-case client, from simulated participations.
        for spec in ("poisson", "fixed-size"):
            schedule = _schedule(spec)
            rng = np.random.default_rng(3)
            counts = np.concatenate(
                [
                    np.bincount(
                        np.concatenate(list(schedule.cohorts(CLIENTS, rng))),
                        minlength=1,
                    )
                    for _ in range(20)
                ]
            )
            shifts = np.sqrt(counts) / 0.5
            epsilon = _bounds(spec)["known"]
            delta = np.asarray(delta_two_gaussians(0, 1, shifts, 1, epsilon))
            error = delta.std() / math.sqrt(len(delta))
            assert delta.mean() <= DELTA + 3 * error

    def test_errors(self):
        with pytest.raises(ValueError, match=r"delta=1\.0 in"):
            upper_bounds(_schedule("poisson").law(10), 0.5, 1.0)


@pytest.mark.parametrize("z", [0.3, 1.0, 4.0])
def test_hidden_rounds_of_blocks_have_the_exact_epsilon(z):
    """As `hidden_rounds_epsilon`, and as a strategy of one band."""
    schedule, delta = make_schedule("balls-in-bins", 60, 3), 1e-5
    found = tightest(
        upper_bounds(schedule.law(100), z, delta), rounds_known=False
    )
    assert found.epsilon == pytest.approx(
        hidden_rounds_epsilon(
            schedule.law(100).events, np.full(60, 1 / z), delta
        ),
        rel=1e-7,  # signals have 8 digits
    )
    assert found == strategy_bounds(schedule.law(100), np.eye(60), z, delta)[-1]
    assert found.epsilon < gaussian_epsilon(z, delta, 3)


def test_coins_over_a_cycle_are_as_coins_in_so_many_rounds():
    schedule = make_schedule("drop-out:of=cyclic,rate=0.7", 60, 3)
    found = tightest(
        upper_bounds(schedule.law(100), 1.0, 1e-5), rounds_known=False
    )
    often = schedule.most_participations()
    assert found.epsilon == pytest.approx(
        poisson_epsilon(1.0, 0.3, often, 1e-5)
    )
