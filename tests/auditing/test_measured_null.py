"""The null of a run's statistics: what is tallied, what comes back, and what is warned of."""

import calibration
import numpy as np
import pytest
from scipy import stats

from fl_epe import AuditRecord
from fl_epe.auditing import MeasuredNull, RoundFacts, RunAuditor, least_deviations, misfits
from fl_epe.auditing.measured_null import NULL_CANARIES, NullTally, scorer_with_null
from fl_epe.canaries import CanaryScorer, CanarySet
from fl_epe.mechanism import ServerSGD, norm

OBSERVED, COUNT, DIM = 3, 50, 1000
PRESENT: tuple[list[int], ...] = ([0, 2], [0], [], [2])
SIGNALS = (1.0, 0.5, 2.0, 3.0)
SERVER = ServerSGD(learning_rate=0.5, momentum=0.9)


def _rounds():
    rng = np.random.default_rng(1)
    return rng.standard_normal((len(PRESENT), COUNT))


def _tally(rounds, tally=None):
    tally = tally or NullTally(OBSERVED, COUNT)
    for number in rounds:
        tally.add_round(_rounds()[number], PRESENT[number], SIGNALS[number])
        tally.add_step(_rounds()[number], SERVER, float(number + 1), DIM)
    return tally


def _by_name(null):
    return {
        name: (null.means[i], null.deviations[i], null.counts[i])
        for i, name in enumerate(null.statistics)
    }


def _check_is(found, scores):
    """The mean, deviation and histogram of a statistic are those of these scores."""
    mean, width, counts = found
    assert mean == pytest.approx(scores.mean(), abs=1e-6)
    assert width == pytest.approx(scores.std(), rel=1e-6)
    inner, _ = np.histogram(scores, MeasuredNull.edges)
    outer = [np.sum(scores < -6)], [np.sum(scores > 6)]
    assert np.array_equal(counts, np.concatenate([outer[0], inner, outer[1]]))


def test_the_matched_filter_is_that_of_the_borrowed_rounds():
    found = _by_name(_tally(range(4)).finish({}))
    expected = []
    for number in range(COUNT):
        mine = number % OBSERVED
        total = energy = 0.0
        for scores, present, signal in zip(_rounds(), PRESENT, SIGNALS, strict=True):
            if mine in present:
                total, energy = total + signal * scores[number], energy + signal**2
        if energy:  # nobody borrows from canary 1, who took no part
            expected.append(total / np.sqrt(energy))
    assert len(expected) == COUNT - COUNT // OBSERVED - (COUNT % OBSERVED > 1)
    _check_is(found["matched-filter"], np.array(expected))


def test_the_maximum_is_over_the_deltas_that_the_server_makes():
    found = _by_name(_tally(range(4)).finish({}))
    velocity, cosines = np.zeros(COUNT), []
    for number, dots in enumerate(_rounds()):
        velocity = 0.9 * velocity + dots
        cosines.append(np.sqrt(DIM) * 0.5 * velocity / (number + 1))
    largest = np.max(cosines, axis=0)
    expected = stats.norm.isf(-np.expm1(4 * stats.norm.logcdf(largest)))
    far = largest > 8  # the complement is below the smallest number there
    assert not np.any(far & np.isfinite(expected) & (expected < 6))
    mean, _, counts = found["maximum"]
    assert counts.sum() == COUNT
    assert np.isfinite(mean)
    inner, _ = np.histogram(expected, MeasuredNull.edges)
    assert np.array_equal(counts[1:-1], inner)


def test_the_maximum_of_independent_rounds_is_standard():
    rng, tally, count = np.random.default_rng(3), NullTally(1, 20_000), 20_000
    for _ in range(30):
        tally.add_delta(2.0 * rng.standard_normal(count), 2.0, 1)
    tally.add_delta(np.zeros(count), 0.0, 1)  # a round in which the model stayed
    mean, width, _ = _by_name(tally.finish({}))["maximum"]
    assert mean == pytest.approx(0, abs=4 / np.sqrt(count))
    assert width == pytest.approx(1, abs=4 / np.sqrt(2 * count))


def test_a_tally_goes_on_where_it_stopped():
    whole, first = _tally(range(4)), _tally(range(2))
    second = NullTally(OBSERVED, COUNT)
    second.restore({"more": np.zeros(1), **first.state()})
    found, expected = _tally(range(2, 4), second).finish({}), whole.finish({})
    assert found.statistics == expected.statistics == ("matched-filter", "maximum")
    for name in ("means", "deviations", "counts"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))


def test_a_state_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"array null.total of shape \(50,\)"):
        NullTally(OBSERVED, COUNT).restore(NullTally(OBSERVED, COUNT + 1).state())
    with pytest.raises(ValueError, match=r"array null.total"):
        NullTally(OBSERVED, COUNT).restore({})


def test_nothing_was_measured_without_rounds():
    null = NullTally(OBSERVED, COUNT).finish({})
    assert null.statistics == ()
    assert misfits(null) == []


def test_tails_are_counts_beyond_the_limits():
    scores = np.array([-5.0, -4.2, -1.1, 0.0, 1.2, 1.7, 3.2, 7.0])
    null = NullTally(1, 8).finish({"model": scores})
    low, high = null.tails(0)
    for place, limit in enumerate(MeasuredNull.limits):
        assert (low[place], high[place]) == (np.sum(scores < -limit), np.sum(scores > limit))
    assert null.size(0) == 8
    np.testing.assert_allclose(null.expected_counts(0), 8 * stats.norm.sf(MeasuredNull.limits))


def _record(kind, canaries=20, z=0.5, dim=4000, rounds=3):
    """A run of noise, in which each canary takes part once."""
    rng = np.random.default_rng(4)
    auditor = RunAuditor(
        canaries, 10, delta=1e-3, seed=5, server=ServerSGD(), kind=kind, null_canaries=NULL_CANARIES
    )
    theta = rng.standard_normal(dim).astype(np.float32)
    auditor.begin(theta)
    for number in range(rounds):
        present = list(range(number, canaries, rounds))
        noise = z * rng.standard_normal(dim)
        total = auditor.canaries.combine(np.ones((1, len(present))), numbers=present)[0]
        theta = (theta + (total + noise) / 10).astype(np.float32)
        auditor.observe(theta, RoundFacts(present, 0.1, 1.0, 10.0))
    return auditor.record(noise_multiplier=z, sum_noise_multiplier=z)


def test_the_null_of_a_run_is_the_exact_one_and_is_kept(tmp_path):
    record = _record("rotation")
    null = record.null
    assert null.statistics == ("model", "displacement", "matched-filter", "maximum")
    assert all(null.size(number) > 100_000 for number in range(4))
    assert misfits(null, least_deviations(record)) == []
    loaded = AuditRecord.load(record.save(tmp_path / "record.npz")).null
    assert loaded.statistics == null.statistics
    assert np.array_equal(loaded.counts, null.counts)


def test_independent_canaries_are_too_dear_for_it():
    assert _record("sphere").null.statistics == ()
    assert scorer_with_null(CanarySet(1000, 5, 1, "sphere")).others == 0
    scorer = scorer_with_null(CanarySet(1000, 5, 1, "rotation"))
    assert isinstance(scorer, CanaryScorer)
    assert scorer.others + 5 == 1 << 17


def test_canaries_that_are_much_of_a_release_make_the_null_narrower_and_that_is_no_misfit():
    """The prediction is for one rotation: with 2^17 dimensions all canaries come from one."""
    record = _record("rotation", canaries=60, z=0.02, dim=120_000)
    found = dict(zip(record.null.statistics, record.null.deviations, strict=True))
    least = least_deviations(record)
    for name in ("displacement", "matched-filter"):
        assert least[name] < 0.9
        # 0.002 is the error of the deviation; the canaries' own energy is measured from 60.
        assert found[name] == pytest.approx(least[name], abs=0.02)
    assert least["model"] > 0.99
    assert misfits(record.null, least) == []
    narrow = {misfit.statistic for misfit in misfits(record.null)}
    assert narrow == {"displacement", "matched-filter"}


class TestMisfits:
    """Simulated nulls, as in the study."""

    @staticmethod
    def _share(law, runs, seed=0):
        rng = np.random.default_rng(seed)
        right = calibration.normal()
        laws = (law, right, right)
        return np.mean([bool(misfits(calibration.draw(rng, 1 << 17, laws))) for _ in range(runs)])

    def test_right_nulls_are_left_in_peace(self):
        assert self._share(calibration.normal(), 1000) < 1 / 1000

    @pytest.mark.parametrize("width", [0.97, 1.03])
    def test_a_width_that_is_wrong_by_3_percent_is_found(self, width):
        assert self._share(calibration.normal(0, width), 100) == 1

    def test_a_shift_is_found(self):
        assert self._share(calibration.normal(-0.04), 100) == 1

    def test_heavy_tails_are_found(self):
        gradual = calibration.gradual(calibration.MIXED, calibration.WIDE)
        alone = calibration.beyond(4.0, 3.0)
        times = [law.cells[[*range(9), *range(41, 50)]].sum() for law in (gradual, alone)]
        np.testing.assert_allclose(times, 3 * 2 * stats.norm.sf(4), rtol=0.02)
        for law, share in ((gradual, 0.93), (alone, 0.74)):
            error = np.sqrt(share * (1 - share) / 200)
            assert self._share(law, 200) > share - 3 * error

    def test_what_is_found_is_named(self):
        rng, right = np.random.default_rng(0), calibration.normal()
        laws = (right, calibration.normal(0.1, 1.3), right)
        found = misfits(calibration.draw(rng, 1 << 17, laws))
        assert {misfit.statistic for misfit in found} == {"displacement"}
        assert [misfit.what for misfit in found] == [
            "mean",
            "deviation",
            "tail beyond 3",
            "tail beyond 3.5",
            "tail beyond 4",
        ]
        assert found[0].measured == pytest.approx(0.1, abs=0.01)
        assert (found[0].expected, found[1].expected) == (0.0, 1.0)

    def test_the_maximum_has_no_exact_null(self):
        null = calibration.draw(np.random.default_rng(0), 1000, (calibration.normal(3, 2),))
        maximum = MeasuredNull(("maximum",), null.means, null.deviations, null.counts)
        assert misfits(maximum) == []
        assert misfits(null)


def test_the_model_s_null_is_of_cosines_with_it():
    """What a run keeps of the final model, against the canaries one by one."""
    canaries = CanarySet(DIM, 4, 7, "rotation")
    scorer, tally = CanaryScorer(canaries, others=20), NullTally(4, 20)
    model = np.random.default_rng(2).standard_normal(DIM).astype(np.float32)
    dots = scorer.add("model", model)
    assert dots is not None
    scale = np.sqrt(DIM) / norm(model)
    found = _by_name(tally.finish({"model": scale * dots[4:]}))
    others = canaries.with_count(24)
    one_by_one = [scale * float(others.vector(i) @ model) for i in range(4, 24)]
    mean, width, _ = found["model"]
    assert mean == pytest.approx(np.mean(one_by_one), abs=1e-4)
    assert width == pytest.approx(np.std(one_by_one), abs=1e-4)
