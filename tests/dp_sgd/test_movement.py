import functools

import numpy as np
import pytest

from fl_epe.dp_sgd.movement import Movement

DIM, STEPS = 2000, 30


def moved(rule, replayed=True, steps=STEPS, seed=0):
    """Steps that ``rule`` makes of gradient, canaries and noise; SGD with rate 1 is replayed."""
    rng = np.random.default_rng(seed)
    movement, model = Movement(DIM), np.zeros(DIM)
    gradient = rng.normal(size=DIM) / 2
    for _ in range(steps):
        canaries, noise = rng.normal(size=DIM) / 3, rng.normal(size=DIM)

        def replay(start=model, step=gradient + canaries + noise):
            if not replayed:
                raise RuntimeError("no copies")
            return start - step

        movement.begin(model, noise, replay)
        model = model - rule(gradient, canaries, noise)
        movement.end(model)
    movement.count_change(model)
    return movement


def test_the_noisy_gradient_moves_the_model():
    found = moved(lambda gradient, canaries, noise: gradient + canaries + noise)
    assert (
        found.steps,
        found.unexplained,
        found.changes,
        found.has_no_noise,
    ) == (
        STEPS,
        0,
        0,
        False,
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_model_that_moves_without_the_noise(seed):
    before = [0.0]

    def exact(gradient, canaries, noise):
        return gradient

    def clipped_sum(gradient, canaries, noise):
        return gradient + canaries

    def momentum(gradient, canaries, noise):
        before[0] = 0.95 * before[0] + gradient + canaries
        return before[0]

    for rule in (exact, clipped_sum, momentum):
        found = moved(rule, seed=seed)
        assert found.unexplained == STEPS
        assert found.has_no_noise


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_computed_from_the_noisy_gradient_is_not_accused(seed):
    before = [0.0]

    def delayed(gradient, canaries, noise):
        older, before[0] = before[0], gradient + canaries + noise
        return older + np.zeros(DIM)

    def smoothed(gradient, canaries, noise):
        before[0] = 0.95 * before[0] + 0.05 * (gradient + canaries + noise)
        return before[0]

    def largest(gradient, canaries, noise):
        step = gradient + canaries + noise
        return step * (np.abs(step) > 1.5)

    def signs(gradient, canaries, noise):
        return np.sign(gradient + canaries + noise)

    def third(
        gradient, canaries, noise
    ):  # nor is a part of it, which may be a large step
        return gradient + canaries + noise / 3

    for rule in (delayed, smoothed, largest, signs, third):
        before[0] = 0.0
        found = moved(rule, seed=seed)
        assert found.unexplained == STEPS
        assert not found.has_no_noise


def test_what_cannot_be_replayed_is_told():
    found = moved(
        lambda gradient, canaries, noise: gradient, replayed=False, steps=3
    )
    assert (found.steps, found.unexplained, found.has_no_noise) == (3, 3, False)
    assert found.reason == "a step cannot be replayed (RuntimeError: no copies)"


def test_changes_between_steps_are_counted():
    movement, model = Movement(3), np.zeros(3)
    for _ in range(4):
        movement.begin(
            model, np.ones(3), functools.partial(np.subtract, model, 1)
        )
        model = model - 1
        movement.end(model)
        model = model + 0.1
    assert (movement.changes, movement.unexplained) == (3, 0)
    movement.count_change(model)
    assert movement.changes == 4


@pytest.mark.parametrize(("end", "changes"), [(-1, 0), (-2, 1)])
def test_a_step_whose_end_nobody_saw_is_a_change_unless_it_ends_as_replayed(
    end, changes
):
    movement = Movement(3)
    movement.begin(np.zeros(3), np.ones(3), lambda: np.zeros(3) - 1)
    movement.count_change(np.zeros(3) + end)
    assert (movement.steps, movement.changes) == (0, changes)


def test_a_model_that_stays_where_it_is_is_not_accused():
    found = moved(lambda gradient, canaries, noise: 0)
    assert (found.unexplained, found.has_no_noise) == (STEPS, False)
    found = moved(
        lambda gradient, canaries, noise: np.full(DIM, np.inf), steps=1
    )
    assert (found.unexplained, found.has_no_noise) == (1, False)
