"""The noise for a target ε, and the canaries of a run: what its report then says."""

import dataclasses

import numpy as np
import pytest
from limit_settings import DELTA, REAL, SERVERS, T, epsilon_of_shift

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    Adversary,
    AuditedClient,
    answer,
    canary_load,
    scores_of,
    seen_by,
)
from fl_epe.auditing.answer.ladder_fit import ladder_fit
from fl_epe.limit import (
    advice_lines,
    canary_advice,
    canary_lines,
    expected_record,
    limit_record,
    median_client,
    noise_for_epsilon,
    worst_client,
)
from fl_epe.limit.client import exceeds, expected_epsilon
from fl_epe.limit.simulated_record import RealUpdates
from fl_epe.schedules import (
    Capped,
    Poisson,
    ShuffledEpochs,
    Trace,
    make_schedule,
)
from fl_epe.schedules.sampled import FixedSize, MinSeparation

CLIENTS = 120
SEES = pytest.mark.parametrize("sees", ["final", "all"])


def reported(
    schedule, z, sees, runs=60, clients=CLIENTS, places=13, **settings
):
    """Of runs in the limit: each one's fit of κ, and the answer of one report."""
    fits = []
    for seed in range(runs):
        record = limit_record(
            schedule,
            z,
            DELTA,
            num_canaries=places,
            unobserved=2,
            beside=clients,
            seed=seed,
            **settings,
        )
        view = seen_by(record, Adversary(sees))
        fits.append(ladder_fit(view, scores_of(view)))
    secret = AuditedClient.of(record).secret is not None
    return (
        fits,
        answer(record, Adversary(sees, knows_rounds=not secret)),
        record,
    )


def check_scales(fits):
    scales = np.array([fit.scale for fit in fits])
    assert abs(scales.mean() - 1) < 4 * scales.std(ddof=1) / np.sqrt(len(fits))


class TestNoise:
    @pytest.mark.slow
    @pytest.mark.parametrize("shift", [0.5, 40.0])
    @pytest.mark.parametrize(
        "worst_case", [False, True], ids=["median", "worst-case"]
    )
    def test_one_participation_is_one_gaussian_mechanism(
        self, shift, worst_case
    ):
        schedule = ShuffledEpochs(256, 1)
        for sees, exact in (("final", 1 / (shift * 16)), ("all", 1 / shift)):
            advice = noise_for_epsilon(
                schedule,
                epsilon_of_shift(shift),
                DELTA,
                1000,
                sees=sees,
                worst_case=worst_case,
            )
            assert advice.noise_multiplier == pytest.approx(exact, rel=1e-6)
            assert advice.answer.participations == 1
            assert advice.answer.theory.epsilon == pytest.approx(
                gaussian_epsilon(exact, DELTA), rel=1e-5
            )

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "target", [1.0, pytest.param(30.0, marks=pytest.mark.slow)]
    )
    @pytest.mark.parametrize("settings", SERVERS.values(), ids=SERVERS)
    @SEES
    def test_epsilon_of_the_noise_or_theory_is_the_target(
        self, target, settings, sees
    ):
        advice = noise_for_epsilon(
            MinSeparation(T, 0.25, 3),
            target,
            DELTA,
            CLIENTS,
            sees=sees,
            **settings,
        )
        assert advice.answer.epsilon <= target
        answer, theory = advice.answer.epsilon, advice.answer.theory.epsilon
        if "real" not in settings:
            assert answer == pytest.approx(target, rel=1e-5)
        elif answer < target * (
            1 - 1e-5
        ):  # real updates hide enough: the noise is for a guarantee
            assert theory == pytest.approx(target, rel=1e-5)
        assert advice.answer.low <= advice.answer.epsilon <= advice.answer.high

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("kind", "sees"),
        [
            ("epochs", "final"),
            ("epochs", "all"),
            ("balls-in-bins", "final"),
            pytest.param("balls-in-bins", "all", marks=pytest.mark.slow),
            pytest.param("poisson", "final", marks=pytest.mark.slow),
            pytest.param("poisson", "all", marks=pytest.mark.slow),
        ],
    )
    def test_reports_of_the_run_say_the_target(self, kind, sees):
        """The setting of digits: 120 clients, 60 rounds, 12 participations of each."""
        schedule, target = make_schedule(kind, 60, 12), 3.0
        advice = noise_for_epsilon(
            schedule, target, DELTA, CLIENTS, sees=sees, momentum=0.9
        )
        found, z = advice.answer, advice.noise_multiplier
        fits, report, record = reported(schedule, z, sees, momentum=0.9)
        check_scales(fits)
        assert expected_epsilon(record, sees) == pytest.approx(
            target, rel=0.02
        )  # where κ is 1
        (said,) = (
            each.epsilon for each in advice.load.forecasts if each.sees == sees
        )
        if kind != "balls-in-bins":  # which is taken for coins before the run
            assert said == pytest.approx(target, rel=0.02)
        assert report.estimate.epsilon == expected_epsilon(
            record, sees, report.fit.scale
        )
        assert report.adversary == Adversary(
            sees, knows_rounds=found.theory.knows_rounds
        )
        assert report.participations == found.participations == 12
        assert report.analytical.epsilon == pytest.approx(
            found.theory.epsilon, rel=1e-6
        )
        assert report.analytical.adjacency == found.theory.adjacency
        widths = [fit.high - fit.low for fit in fits]
        slope = expected_epsilon(record, sees, 1.1) - expected_epsilon(
            record, sees, 0.9
        )
        assert np.mean(widths) / 0.2 * slope == pytest.approx(
            found.high - found.low, rel=0.3
        )

    @pytest.mark.slow
    @SEES
    @pytest.mark.parametrize(
        "settings",
        [SERVERS["momentum"], SERVERS["real"]],
        ids=["momentum", "real"],
    )
    def test_servers_and_real_updates_are_those_of_the_run(
        self, settings, sees
    ):
        schedule = ShuffledEpochs(T, 3)
        advice = noise_for_epsilon(
            schedule, 4.0, DELTA, CLIENTS, sees=sees, **settings
        )
        fits, _, record = reported(
            schedule, advice.noise_multiplier, sees, **settings
        )
        check_scales(fits)
        reached = 4.0
        if (sees, settings) == (
            "final",
            SERVERS["real"],
        ):  # hidden by real updates
            reached = advice.answer.epsilon
            assert advice.answer.theory.epsilon == pytest.approx(4.0, rel=1e-5)
        assert expected_epsilon(record, sees) == pytest.approx(
            reached, rel=0.02
        )

    @pytest.mark.slow
    @SEES
    def test_the_worst_case_has_the_target(self, sees):
        schedule, z = Poisson(T, 0.3), {}
        for worst_case in (False, True):
            advice = noise_for_epsilon(
                schedule, 4.0, DELTA, 200, sees=sees, worst_case=worst_case
            )
            z[worst_case] = advice.noise_multiplier
        assert z[False] < z[True]
        assert advice.answer.theory.knows_rounds
        assert advice.answer.theory.adjacency == "zero-out"
        record = expected_record(schedule, z[True], DELTA, 200)
        weights, most = (
            seen_by(record, Adversary(sees)).expected_scores.by_round,
            [],
        )
        for seed in range(60):
            rng = np.random.default_rng(seed)
            sums = weights @ (rng.random((T, 200)) < 0.3)
            most.append(
                epsilon_of_shift(
                    (sums if sees == "final" else np.sqrt(sums)).max()
                )
            )
        above = np.mean(np.array(most) > 4.0 * (1 + 1e-3))
        assert above <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 60)

    @pytest.mark.slow
    def test_the_worst_case_of_more_clients_needs_more_noise(self):
        few, many = (
            noise_for_epsilon(
                FixedSize(T, 0.25), 2.0, DELTA, clients, worst_case=True
            )
            for clients in (400, 10**6)
        )
        assert few.noise_multiplier < many.noise_multiplier
        assert few.answer.participations < many.answer.participations

    def test_a_schedule_without_a_law(self):
        schedule = Capped(Poisson(T, 0.3), per_window=1, window=3)
        advice = noise_for_epsilon(schedule, 2.0, DELTA, 400)
        assert advice.answer.epsilon == pytest.approx(2.0, rel=1e-5)
        assert advice.answer.theory.knows_rounds

    def test_a_log_has_its_own_clients(self):
        trace = Trace(np.array([0, 0, 1, 3]), np.array([5, 6, 6, 7]))
        advice = noise_for_epsilon(trace, 2.0, DELTA, 99)
        assert advice.clients == 3
        assert advice.answer.participations == 1

    @pytest.mark.parametrize("worst_case", [False, True])
    def test_where_real_updates_hide_well_enough_theory_decides(
        self, worst_case
    ):
        real = RealUpdates(np.r_[0.0, np.full(T - 1, 0.1)], 50.0)
        advice = noise_for_epsilon(
            ShuffledEpochs(T, 3),
            5.0,
            DELTA,
            CLIENTS,
            real=real,
            worst_case=worst_case,
        )
        assert advice.answer.theory.epsilon == pytest.approx(5.0, rel=1e-5)
        assert 0 < advice.answer.epsilon < 5
        assert gaussian_epsilon(
            advice.noise_multiplier, DELTA, 3
        ) == pytest.approx(5.0, rel=1e-5)
        assert any(
            "without noise nothing is guaranteed" in note
            for note in advice.notes
        )
        # In the first round there is no residual for who sees every round.
        every_round = noise_for_epsilon(
            ShuffledEpochs(T, 3), 5.0, DELTA, CLIENTS, sees="all", real=real
        )
        assert every_round.noise_multiplier > 0

    def test_real_updates_take_noise_off(self):
        bare, with_real = (
            noise_for_epsilon(
                ShuffledEpochs(T, 3), 2.0, DELTA, CLIENTS, real=real
            )
            for real in (None, REAL)
        )
        expected = np.sqrt(bare.noise_multiplier**2 - REAL.final)
        assert with_real.noise_multiplier == pytest.approx(expected, rel=1e-6)
        assert "held as they were measured" in " ".join(with_real.notes)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            pytest.param(
                {"target_epsilon": 0},
                "target_epsilon=0 in",
                id="target_epsilon=0-in",
            ),
            pytest.param(
                {"target_epsilon": np.inf},
                "target_epsilon=inf in",
                id="target_epsilon=inf-in",
            ),
            pytest.param(
                {"target_epsilon": np.nan},
                "target_epsilon=nan in",
                id="target_epsilon=nan-in",
            ),
            pytest.param(
                {"delta": 1.0}, r"delta=1.0 in \(0, 1\)", id="delta=1.0-in-0,1"
            ),
            pytest.param({"sees": "most"}, "sees='most'", id="sees"),
            pytest.param(
                {"clip_norms": np.ones(3)}, "clip_norms=", id="clip_norms="
            ),
            pytest.param(
                {"real": RealUpdates(np.ones(3), 1.0)},
                "real.every_round=",
                id="real.every_round=",
            ),
            pytest.param(
                {"schedule": Poisson(T, 1e-9)},
                "no canary took part",
                id="nobody-takes-part",
            ),
        ],
    )
    def test_errors(self, changes, message):
        arguments = {
            "schedule": Poisson(T, 0.3),
            "target_epsilon": 1.0,
            "delta": DELTA,
        }
        arguments["clients"] = CLIENTS
        with pytest.raises(ValueError, match=message):
            noise_for_epsilon(**(arguments | changes))

    def test_too_few_clients_for_canaries(self):
        advice = noise_for_epsilon(ShuffledEpochs(T, 1), 3.0, DELTA, 3)
        assert (advice.answer.low, advice.answer.high) == (0.0, np.inf)
        assert "would report" not in "\n".join(advice_lines(advice))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "worst_case", [False, True], ids=["median", "worst-case"]
    )
    def test_lines(self, worst_case):
        advice = noise_for_epsilon(
            Poisson(T, 0.3), 1.0, DELTA, CLIENTS, worst_case=worst_case
        )
        lines = advice_lines(advice)
        text = "\n".join(lines)
        whose = "worst-case client of 120" if worst_case else "median client"
        knows = "knows" if worst_case else "does not know"
        adjacency = "zero-out" if worst_case else "add-or-remove"
        for part in (
            "z = ",
            whose,
            "δ = 1e-05",
            f"sees the final model and {knows}",
            adjacency,
        ):
            assert part in text
        shown = float(text.split("z = ")[1].split()[0])
        assert 0 <= shown / advice.noise_multiplier - 1 < 1e-3
        assert len(text.split()) <= 200


class TestCanaries:
    def test_the_interval_is_that_of_a_run_with_them(self):
        schedule = ShuffledEpochs(60, 12)
        found = canary_advice(schedule, 0.5, DELTA, CLIENTS, 0.1)
        load = canary_load(
            CLIENTS,
            rounds=60,
            participations=12,
            delta=DELTA,
            noise_multiplier=0.5,
        )
        assert found.load == load
        for each in found.answers:
            _, report, _ = reported(
                schedule, 0.5, each.sees, 1, places=load.places
            )
            width = report.estimate.high - report.estimate.low
            assert width == pytest.approx(each.high - each.low, rel=0.05)
        text = " ".join(canary_lines([found]))
        assert (
            text.count("Each adversary knows the client's rounds (zero-out")
            == 1
        )

    def test_a_larger_share_tells_more(self):
        few, many = (
            canary_advice(ShuffledEpochs(60, 4), 0.5, DELTA, CLIENTS, share)
            for share in (0.05, 0.2)
        )
        assert few.load.places < many.load.places
        for one, other in zip(few.answers, many.answers, strict=True):
            assert one.epsilon == pytest.approx(other.epsilon, rel=0.02)
            assert other.high - other.low < one.high - one.low

    def test_a_place_that_keeps_a_part_of_its_rounds(self):
        found = canary_advice(ShuffledEpochs(60, 30), 1.0, DELTA, 5, 0.1)
        assert found.load.round_share < 1
        whole = median_client(expected_record(ShuffledEpochs(60, 30), 1.0, DELTA, 5, places=1),
            "all", 0.95)  # fmt: skip
        assert found.answers[1].high > whole.high

    def test_nothing_is_said_where_too_few_take_part(self):
        assert (
            canary_advice(ShuffledEpochs(60, 1), 1.0, DELTA, 3, 0.1).answers
            == ()
        )

    def test_errors(self):
        with pytest.raises(ValueError, match="noise_multiplier=0 in"):
            canary_advice(ShuffledEpochs(60, 1), 0, DELTA, 100, 0.1)


class TestClients:
    @pytest.mark.parametrize(
        "kind", ["epochs", "poisson", "fixed-size", "balls-in-bins"]
    )
    def test_everybody_in_every_round_is_one_number(self, kind):
        record = expected_record(make_schedule(kind, 4, 4), 1.0, DELTA, 100)
        exact = gaussian_epsilon(1.0, DELTA, 4)
        for adversary in (FINAL_MODEL, EVERY_ROUND):
            found = median_client(record, adversary.sees)
            worst = worst_client(
                record, make_schedule(kind, 4, 4), adversary.sees, 100
            )
            for each in (found, worst):
                assert each.epsilon == pytest.approx(exact, rel=1e-5)
                assert each.theory.epsilon == pytest.approx(exact, rel=1e-5)
                assert not each.above

    def test_two_numerical_methods_accuse_nobody(self):
        """Theory is by one method and ε by another, which differ in the sixth digit.

        By how much, and which is larger, depends on the processor.
        """
        record = expected_record(
            make_schedule("poisson", 1000, 10), 0.7, 1e-9, 10_000
        )
        found = median_client(record, "all")
        assert found.epsilon == pytest.approx(found.theory.epsilon, rel=1e-4)
        assert not found.above
        theory = dataclasses.replace(
            found.theory, epsilon=found.epsilon / (1 + 1e-4)
        )
        assert not exceeds(found.epsilon, theory)
        assert exceeds(
            found.epsilon, dataclasses.replace(theory, knows_rounds=True)
        )

    def test_the_median_of_many_clients_is_that_of_ten_thousand(self):
        few, many = (
            median_client(
                expected_record(MinSeparation(T, 0.25, 3), 1.0, DELTA, clients),
                "all",
            )
            for clients in (10_000, 10**6)
        )
        assert few == many
