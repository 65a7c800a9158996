"""Canaries on a ladder of participations, at the places that a schedule gives out."""

import itertools

import numpy as np
import pytest

from fl_epe.canaries.ladder import divided_places, ladder, rungs
from fl_epe.schedules import ShuffledEpochs, presence


@pytest.mark.parametrize("rounds", [0, 1, 2, 3, 12, 30, 77])
def test_rungs_share_the_rounds_and_fall_by_half(rounds):
    participations = rungs(rounds)
    assert sum(participations) == rounds
    assert all(
        first // 2 <= second <= (first + 1) // 2
        for first, second in itertools.pairwise(participations)
    )


@pytest.mark.parametrize(
    ("places", "divided"), [(1, 1), (2, 1), (11, 1), (13, 2), (60, 10)]
)
def test_one_place_in_six_is_divided(places, divided):
    assert divided_places(places) == divided


@pytest.mark.parametrize("places", [1, 3, 13])
def test_each_place_keeps_its_rounds_and_canaries_of_one_are_never_together(
    places,
):
    rng = np.random.default_rng(0)
    place_presence = presence(ShuffledEpochs(60, 12), places, rng, places)
    canary_presence = ladder(place_presence, rng)
    undivided = places - divided_places(places)
    np.testing.assert_array_equal(
        canary_presence[:, :undivided], place_presence[:, :undivided]
    )
    # As many canaries in each round as there were places: no round has more than before.
    np.testing.assert_array_equal(
        canary_presence.sum(axis=1), place_presence.sum(axis=1)
    )
    counts = canary_presence[:, undivided:].sum(axis=0).tolist()
    assert counts == [6, 3, 2, 1] * divided_places(places)
    for first in range(0, len(counts), 4):
        canaries = canary_presence[:, undivided + first : undivided + first + 4]
        np.testing.assert_array_equal(
            canaries.sum(axis=1), place_presence[:, undivided + first // 4]
        )
