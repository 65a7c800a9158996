"""The scorer: cosines of a series of vectors with every canary."""

import numpy as np
import pytest

from fl_epe import CanarySet
from fl_epe.canaries import CanaryScorer, canary_set

DIM = 300
VECTORS = np.random.default_rng(1).standard_normal((7, DIM))


def _tracker(kind="sphere"):
    return CanaryScorer(CanarySet(DIM, 11, 2, kind))


def _naive(vector, kind="sphere"):
    canaries = CanarySet(DIM, 11, 2, kind)
    return np.array(
        [
            canaries.vector(i) @ vector / np.linalg.norm(vector)
            for i in range(11)
        ]
    )


@pytest.mark.parametrize("waiting", [1, 3, 100])
def test_cosines_do_not_depend_on_how_many_wait(waiting, monkeypatch):
    monkeypatch.setattr(canary_set, "SCORE_MEMORY", 4 * DIM * waiting)
    tracker = _tracker()
    for t, vector in enumerate(VECTORS):
        tracker.add("odd" if t % 2 else "even", vector)
    assert tracker.cosines("even").shape == (4, 11)
    # vectors wait as float32
    np.testing.assert_allclose(
        tracker.cosines("odd")[1], _naive(VECTORS[3]), atol=1e-6
    )
    np.testing.assert_allclose(
        tracker.norms("even"), np.linalg.norm(VECTORS[::2], axis=1)
    )


def test_rotated_canaries_are_scored_at_once():
    tracker = _tracker(kind="rotation")
    dots = [tracker.add("a", vector) for vector in VECTORS]
    assert not len(tracker.state()["waiting.names"])
    np.testing.assert_array_equal(tracker.state(["a"])["dots.a"], dots)
    np.testing.assert_allclose(
        tracker.cosines("a")[3], _naive(VECTORS[3], "rotation"), atol=1e-6
    )


def test_independent_canaries_wait():
    tracker = _tracker()
    assert tracker.add("a", VECTORS[0]) is None
    assert tracker.state()["waiting.vectors"].shape == (1, DIM)


@pytest.mark.parametrize("kind", ["rotation", "sphere"])
def test_a_zero_vector_has_cosine_zero(kind):
    tracker = _tracker(kind=kind)
    tracker.add("a", np.zeros(DIM))
    assert not tracker.cosines("a").any()


def test_an_empty_series_is_empty():
    assert _tracker().cosines("nothing").shape == (0, 11)


@pytest.mark.parametrize("kind", ["rotation", "sphere"])
def test_resumed_tracker_goes_on_as_if_never_stopped(kind, monkeypatch):
    monkeypatch.setattr(canary_set, "SCORE_MEMORY", 4 * DIM * 3)
    uninterrupted, first, second = (_tracker(kind) for _ in range(3))
    for vector in VECTORS:
        uninterrupted.add("a", vector)
    for vector in VECTORS[:4]:
        first.add("a", vector)
    second.restore(first.state())
    for vector in VECTORS[4:]:
        second.add("a", vector)
    assert np.array_equal(second.cosines("a"), uninterrupted.cosines("a"))
    assert np.array_equal(second.norms("a"), uninterrupted.norms("a"))


def test_refuses_what_cannot_be_scored():
    tracker = _tracker()
    with pytest.raises(ValueError, match=r"delta\.shape=\(3,\) to be \(300,\)"):
        tracker.add("delta", np.zeros(3))
    with pytest.raises(ValueError, match="Expected delta to be finite"):
        tracker.add("delta", np.full(DIM, np.nan))
    larger = CanaryScorer(CanarySet(DIM + 1, 11, 2, "sphere"))
    larger.add("a", np.zeros(DIM + 1))
    with pytest.raises(ValueError, match=r"shape=\(1, 301\)"):
        tracker.restore(larger.state())
