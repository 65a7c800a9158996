"""`PromisedNoise` on synthetic replies: what it finds, and what it does not accuse."""

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from fl_epe.noise import LocalDp, PromisedNoise

SIZES = {"weight": 4000, "middle": 900, "bias": 100}
DIM = sum(SIZES.values())
PROMISE = LocalDp(epsilon=10.0, delta=1e-5, clip_norm=1.0)
STD = PROMISE.std
NODES, ODD, ROUNDS = 20, 7, 3

Update = NDArray[np.float64]


def update_of(rng: np.random.Generator, norm: float = 1.0) -> Update:
    direction = rng.standard_normal(DIM)
    return norm * direction / np.linalg.norm(direction)


def one_layer(rng: np.random.Generator) -> Update:
    noise = rng.normal(0, STD, DIM)
    noise[SIZES["weight"] :] = 0
    return noise


# What an odd node adds to its update in place of the promised noise, by a generator.
DEFECTS = {
    "off": lambda rng: np.zeros(DIM),
    "half": lambda rng: rng.normal(0, 0.5 * STD, DIM),
    "nine-tenths": lambda rng: rng.normal(0, 0.9 * STD, DIM),
    "eleven-tenths": lambda rng: rng.normal(0, 1.1 * STD, DIM),
    "same-seed": lambda rng: np.random.default_rng(99).normal(0, STD, DIM),
    "one-layer": one_layer,
    "laplace": lambda rng: rng.laplace(0, STD / np.sqrt(2), DIM),
    "uniform": lambda rng: rng.uniform(
        -STD * np.sqrt(3), STD * np.sqrt(3), DIM
    ),
}
SAID = {
    "off": "no noise in 3 of 3 replies",
    "half": "noise of at most 0.5",
    "nine-tenths": "noise of at most 0.9",
    "eleven-tenths": "1.1 times the promised noise, or an update that is not clipped",
    "same-seed": "the same noise as in another of its replies in 2 of 3 replies",
    "one-layer": "times the promised size",
    "laplace": "not Gaussian in 3 of 3 replies",
    "uniform": "not Gaussian",
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_node_with_wrong_noise_is_named_and_no_other_is(defect):
    rng, found = (
        np.random.default_rng(11),
        PromisedNoise(PROMISE, SIZES, seed=5),
    )
    for _ in range(ROUNDS):
        for node in range(NODES):
            noise = (
                DEFECTS[defect](rng) if node == ODD else rng.normal(0, STD, DIM)
            )
            found.add(node, update_of(rng) + noise)
    assert list(found.faults) == [ODD]
    assert SAID[defect] in found.faults[ODD]
    assert found.faults[ODD].startswith(f"node {ODD}: ")


def test_noise_of_another_node_is_named_with_that_node():
    rng, found = (
        np.random.default_rng(12),
        PromisedNoise(PROMISE, SIZES, seed=5),
    )
    for _ in range(3):
        noise = rng.normal(0, STD, (NODES, DIM))
        noise[ODD] = noise[3]
        for node in range(NODES):
            found.add(node, update_of(rng) + noise[node])
    assert found.faults == {
        ODD: f"node {ODD}: the same noise as node 3 in 3 of 3 replies"
    }


def test_an_array_without_noise_is_named():
    rng, found = np.random.default_rng(13), PromisedNoise(PROMISE, SIZES)
    noise = rng.normal(0, STD, DIM)
    noise[4000:4900] = 0
    found.add(0, noise)
    assert "noise of at most" in found.faults[0]
    found = PromisedNoise(PROMISE, SIZES)
    for _ in range(4):
        noise = rng.normal(0, STD, DIM)
        noise[4900:] = 0
        found.add(0, noise)
    assert "too little noise in bias" in found.faults[0]


def test_noise_that_stops_late_is_found_in_that_round():
    rng, found = np.random.default_rng(14), PromisedNoise(PROMISE, SIZES)
    for _ in range(30):
        found.add(0, rng.normal(0, STD, DIM))
    assert not found.faults
    found.add(0, update_of(rng))
    assert found.faults == {0: "node 0: no noise in 1 of 31 replies"}


# Updates of honest clients, which nobody may be accused for.
UPDATES = {
    "none": lambda rng: np.zeros(DIM),
    "dense": update_of,
    "always-the-same": lambda rng: update_of(np.random.default_rng(1)),
    "one-entry": lambda rng: np.eye(1, DIM, 17)[0],
    "one-layer": lambda rng: np.concatenate(
        [np.zeros(4900), np.full(100, 0.1)]
    ),
}


@pytest.mark.parametrize("epsilon", [1.0, 100.0])
@pytest.mark.parametrize("kind", UPDATES)
def test_clients_who_keep_the_promise_are_not_accused(kind, epsilon):
    promise = LocalDp(epsilon=epsilon, delta=1e-5, clip_norm=1.0)
    rng, found = (
        np.random.default_rng(15),
        PromisedNoise(promise, SIZES, seed=3),
    )
    for _ in range(20):
        for node in range(5):
            noise = rng.normal(0, promise.std, DIM)
            found.add(node, (UPDATES[kind](rng) + noise).astype(np.float32))
    assert not found.faults


def test_first_replies_are_accused_at_most_as_often_as_their_level_says():
    # The first reply may be accused with a probability of half of the level.
    runs, level = 300, 0.5
    rng, promise = (
        np.random.default_rng(16),
        LocalDp(epsilon=1, delta=1e-5, clip_norm=1e-6),
    )
    count = 0
    for _ in range(runs):
        found = PromisedNoise(
            promise, {"one": 100, "two": 60, "three": 40}, level=level
        )
        found.add(0, rng.normal(0, promise.std, 200))
        count += bool(found.faults)
    assert 0 < count <= scipy.stats.binom.isf(1e-3, runs, level / 2)


def test_a_sum_names_no_node():
    rng, count = np.random.default_rng(17), 20
    found = PromisedNoise(PROMISE, SIZES)
    found.add(None, rng.normal(0, STD * np.sqrt(count), DIM), count)
    assert not found.faults
    found.add(None, rng.normal(0, STD * np.sqrt(count / 2), DIM), count)
    assert found.faults[None].startswith(
        "the sum of the replies: noise of at most 0.7"
    )
    assert found.epsilon() is None


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("norm", [0.0, 1.0])
def test_epsilon_of_a_client_is_within_its_interval(epsilon, norm):
    promise = LocalDp(epsilon=epsilon, delta=1e-5, clip_norm=1.0)
    exact, runs, inside = promise.epsilon_of(replies=2), 40, 0
    rng = np.random.default_rng(18)
    for _ in range(runs):
        found = PromisedNoise(promise, SIZES)
        for _ in range(2):
            found.add(0, update_of(rng, norm) + rng.normal(0, promise.std, DIM))
        client = found.epsilon()
        assert client is not None
        assert client.replies == 2
        assert client.low <= client.epsilon <= client.high
        inside += client.low <= exact <= client.high
    assert inside >= scipy.stats.binom.ppf(1e-3, runs, 0.95)


def test_a_resumed_run_knows_noise_from_before():
    rng = np.random.default_rng(19)
    noise = rng.normal(0, STD, DIM)
    before = PromisedNoise(PROMISE, SIZES, seed=4)
    before.add(2, update_of(rng))
    before.add(5, noise)
    after = PromisedNoise(PROMISE, SIZES, seed=4)
    after.restore(before.state())
    assert (
        after.faults
        == before.faults
        == {2: "node 2: no noise in 1 of 1 replies"}
    )
    after.add(6, noise)
    assert (
        after.faults[6] == "node 6: the same noise as node 5 in 1 of 1 replies"
    )
    assert after.epsilon() is not None


def test_numbers_that_make_the_claim_vacuous_are_said():
    promise = LocalDp(epsilon=10, delta=1e-5, clip_norm=1.0, sensitivity=1e-4)
    assert promise.epsilon_of() == pytest.approx(8.5e8, rel=0.01)
    assert "8.52e+08" in promise.fault()
    assert not PROMISE.fault()
    assert "promise ε = 10" in PROMISE.sentence()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", 0.0),
        ("delta", 1.0),
        ("clip_norm", -1.0),
        ("sensitivity", 0.0),
    ],
)
def test_values_out_of_range_are_refused(name, value):
    given = {"epsilon": 1.0, "delta": 1e-5, "clip_norm": 1.0, name: value}
    with pytest.raises(ValueError, match=f"Expected {name}="):
        LocalDp(**given)
