import numpy as np
import pytest

import fl_epe
from fl_epe.noise import (
    NoiseHealth,
    check_noise,
    fault,
    faults,
    sentences,
    told,
)
from fl_epe.noise.health import _CHECKS

LAPLACE = "laplace"
SHAPES: dict[str, tuple[int, dict[str, tuple[int, ...]]]] = {
    "flat": (3, {"all": (800,)}),
    "one-value": (30, {"all": (1,)}),
    "tiny": (5, {"a": (1,), "b": (2, 1), "c": (0,)}),
    "network": (5, {"w": (20, 10), "b": (10,), "v": (10, 3), "c": (3,)}),
}


def draws(seed=0):
    """Noise that no small seed makes."""
    return np.random.default_rng([seed, 7**30])


def failed(noise, std=1.0, **options):
    return {
        check.name: check.severity
        for check in faults(check_noise(noise, std, **options))
    }


def of_law(rng, law, shape):
    return (
        rng.normal(size=shape)
        if law == "gaussian"
        else rng.laplace(0, np.sqrt(0.5), shape)
    )


@pytest.mark.slow
@pytest.mark.parametrize("law", ["gaussian", LAPLACE])
@pytest.mark.parametrize("shapes", list(SHAPES))
def test_correct_noise_passes(shapes, law):
    # At a level of 0.005, two of 12 runs fail by chance in 2 of 1,000 tests.
    rounds, arrays = SHAPES[shapes]
    found = 0
    for seed in range(12):
        rng, health = draws(seed), NoiseHealth(arrays, distribution=law)
        for std in rng.uniform(0.5, 2, rounds):
            noise = {
                name: std * of_law(rng, law, shape)
                for name, shape in arrays.items()
            }
            health.add(
                {name: one.astype(np.float32) for name, one in noise.items()},
                std,
            )
        found += bool(faults(health.checks()))
    assert found <= 1


def test_more_noise_than_claimed_passes():
    assert failed(3 * draws().normal(size=(5, 500))) == {}
    assert (
        failed(
            {"a": draws().normal(size=500), "b": 2 * draws(1).normal(size=300)}
        )
        == {}
    )
    rounds = np.linspace(1, 4, 20)[:, None] * draws().normal(size=(20, 300))
    assert failed(rounds) == {}


@pytest.mark.parametrize("size", [0.4, 0.9])
@pytest.mark.parametrize("law", ["gaussian", LAPLACE])
def test_too_little_noise(law, size):
    found = failed(size * of_law(draws(), law, (5, 2000)), distribution=law)
    assert found["scale"] == ("critical" if size < 0.5 else "theoretical")
    assert "shape" not in found
    measured = {
        c.name: c.measured
        for c in check_noise(size * of_law(draws(), law, 9999), 1.0)
    }
    assert float(measured["scale"].split()[0]) == pytest.approx(size, rel=0.1)


def test_too_little_noise_in_one_array_or_round():
    def release(seed, std=1.0):
        rng = draws(seed)
        return {"w": rng.normal(size=3000), "b": std * rng.normal(size=50)}

    checks = check_noise([release(seed, 0.4) for seed in range(10)], 1.0)
    assert {c.name: c.severity for c in faults(checks)}[
        "scale by array"
    ] == "critical"
    assert "in b" in next(
        c.measured for c in checks if c.name == "scale by array"
    )
    rounds = draws().normal(size=(50, 400))
    rounds[30] *= 0.3
    checks = check_noise(rounds, 1.0)
    assert [(c.name, c.severity) for c in faults(checks)] == [
        ("scale by round", "critical")
    ]
    assert "round 31" in fault(checks)


def test_arrays_and_coordinates_without_noise():
    rng = draws()
    rounds = [{"w": rng.normal(size=90), "b": np.zeros(10)} for _ in range(5)]
    assert failed(rounds)["arrays without noise"] == "critical"
    still = rng.normal(size=(5, 400))
    still[:, 17] = 0
    assert failed(still) == {"coordinates without noise": "critical"}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [5, 300])
def test_equal_noise_in_two_arrays(size, sign):
    noise = draws().normal(size=size)
    same = {
        "a": noise,
        "other": draws(1).normal(size=size),
        "b": 2 * sign * noise,
    }
    assert failed(same, {"a": 1.0, "other": 1.0, "b": 2.0}) == {
        "independence of arrays": "critical",
        "values used once": "critical",
    }
    checks = check_noise(same, {"a": 1.0, "other": 1.0, "b": 2.0})
    assert faults(checks)[0].infinite
    assert "a and b" in fault(checks)


def test_arrays_of_other_sizes_from_one_seed_and_correlated_arrays():
    first, rng = draws().normal(size=1000), draws(1)
    assert failed({"a": first, "b": first[:20]}) == {
        "independence of arrays": "critical",
        "values used once": "critical",
    }
    shared = [{"a": (x := rng.normal(size=200)), "b": 0.6 * x + 0.8 * rng.normal(size=200)}
              for _ in range(5)]  # fmt: skip
    assert failed(shared) == {"independence of arrays": "theoretical"}


def test_noise_that_repeats():
    rounds = draws().normal(size=(60, 40))
    rounds[50] = -rounds[3]
    checks = check_noise(rounds, 1.0)
    assert [(c.name, c.infinite) for c in faults(checks)] == [
        ("independence of rounds", True),
        ("values used once", True),
    ]
    assert "rounds 4 and 51 have the same noise" in fault(checks)
    fresh = draws().normal(size=(61, 40))
    assert failed(0.8 * fresh[1:] + 0.6 * fresh[:-1]) == {
        "independence of rounds": "theoretical"
    }


def test_noise_that_repeats_after_a_resume():
    rounds, health = (
        draws().normal(size=(6, 30)),
        NoiseHealth({"a": 20, "b": (2, 5)}, 1.0),
    )
    for noise in rounds:
        health.add(noise)  # split into the arrays
    resumed = NoiseHealth(None, 1.0)
    resumed.restore(health.state())
    assert resumed.checks() == health.checks()
    resumed.add({"a": rounds[2, :20], "b": rounds[2, 20:]})
    assert "rounds 3 and 7" in fault(resumed.checks())
    with pytest.raises(ValueError, match="Expected state="):
        NoiseHealth({"a": 20}).restore(health.state())
    for name, values in health.state().items():
        if values.ndim > 1 and values.dtype.kind == "f":
            damaged = health.state() | {name: values[..., :-1]}
            with pytest.raises(ValueError, match="shape"):
                NoiseHealth(None, 1.0).restore(damaged)


def torch_noise(shape):
    torch = pytest.importorskip("torch")
    return (
        torch.normal(
            0.0, 3.0, shape, generator=torch.Generator().manual_seed(7)
        )
        / 3
    )


SEEDED = {
    "default_rng": lambda: np.random.default_rng(42).normal(size=9),
    "RandomState": lambda: np.random.RandomState(1234).randn(20, 5)[None],
    "torch": lambda: torch_noise((40, 3))[None],
    "torch-few": lambda: torch_noise((9,)),
}


@pytest.mark.parametrize("name", list(SEEDED))
def test_noise_from_a_seed_that_can_be_guessed(name):
    pytest.importorskip("torch")
    checks = check_noise(SEEDED[name](), 1.0)
    (found,) = [check for check in faults(checks) if check.name == "seed"]
    assert found.severity == "critical"
    assert name.split("-")[0] in found.reproduce


def test_laplace_noise_from_a_seed():
    found = failed(
        np.random.default_rng(3).laplace(0, 1, 50),
        np.sqrt(2),
        distribution=LAPLACE,
    )
    assert found == {"seed": "critical"}


WRONG_LAWS = {
    "uniform": ("shape", lambda rng: rng.uniform(-(3**0.5), 3**0.5, (4, 2000))),
    "laplace": ("shape", lambda rng: rng.laplace(0, 0.5**0.5, (4, 2000))),
    "truncated": (
        "tails",
        lambda rng: np.clip(rng.normal(size=(4, 9999)), -2.9, 2.9),
    ),
    "float16": (
        "grid",
        lambda rng: rng.normal(size=(1, 20_000)).astype(np.float16),
    ),
    "laplace-in-one-release": (
        "shape",
        lambda rng: rng.laplace(0, 0.5**0.5, (1, 20_000)),
    ),
    "twelve-uniforms": (
        "shape",
        lambda rng: rng.random((12, 1, 200_000)).sum(axis=0) - 6,
    ),
    "one-for-all": (
        "grid",
        lambda rng: np.repeat(rng.normal(size=(4, 100)), 20, axis=1),
    ),
}


@pytest.mark.parametrize("name", list(WRONG_LAWS))
def test_other_laws_than_claimed(name):
    check, draw = WRONG_LAWS[name]
    assert failed(draw(draws(3)))[check] == "theoretical"


LATTICES = {
    "discrete": lambda rng, size: rng.choice(
        np.arange(-40, 41), size, p=(p := np.exp(-(np.arange(-40, 41) ** 2) / 8)) / p.sum()
    ) / 2,
    "rounded": lambda rng, size: np.round(rng.normal(size=size) * 64) / 64,
    "float32-on-1e5": lambda rng, size: (rng.normal(size=size) + 1e5).astype(np.float32)
    - np.float32(1e5),
}  # fmt: skip


@pytest.mark.parametrize("name", list(LATTICES))
@pytest.mark.parametrize(
    "size", [(1, 20_000), (40, 30), (2, 3)], ids=["one", "some", "few"]
)
def test_noise_on_multiples_of_a_number_is_not_accused(name, size):
    checks = check_noise(LATTICES[name](draws(2), size), 1.0)
    assert faults(checks) == []
    assert "grid" in [
        c.name for c in checks if c.outcome == "unknown"
    ] or size == (
        2,
        3,
    )
    assert told(checks) == "cannot be told"


def test_half_of_the_noise_on_multiples_of_a_number_is_found():
    assert "scale" in failed(LATTICES["discrete"](draws(), (1, 20_000)), 2.0)


USED_AGAIN = {
    "rolled": lambda one: np.roll(one.ravel(), 77),
    "reversed": lambda one: one.ravel()[::-1],
    "transposed": lambda one: one.T,
    "negated": lambda one: -one,
    "in-float32": lambda one: one.ravel()[::-1].astype(np.float32),
}


@pytest.mark.parametrize("name", list(USED_AGAIN))
@pytest.mark.parametrize("where", ["array", "round", "itself"])
def test_values_that_are_used_again(name, where):
    one = draws().normal(size=(20, 20))
    other = USED_AGAIN[name](one).ravel()
    noise = {
        "array": {"a": one, "b": other},
        "round": [one.ravel(), other],
        "itself": np.concatenate([one.ravel(), other]),
    }[where]
    found = failed(noise)
    assert found.get("values used once") == "critical" or (
        where == "itself" and "grid" in found
    )


def test_what_cannot_be_told():
    noise = draws().normal(size=100)
    for std in (None, 0.0, {"b": 1.0}):
        checks = check_noise({"a": noise}, std)
        assert told(checks) == "cannot be told"
        assert (
            "no standard deviation above 0 is claimed" in sentences(checks)[0]
        )
    assert told(check_noise([[np.nan, 1.0]], 1.0)) == "cannot be told"
    assert told(check_noise(noise[:3], 1.0)) == "cannot be told"
    assert told(NoiseHealth(None, 1.0).checks()) == "cannot be told"
    assert told(check_noise([noise], 1.0)) == "as claimed"
    assert sentences(check_noise([noise], 1.0))[0] == "Noise: as claimed."


def test_bad_arguments():
    with pytest.raises(ValueError, match="distribution"):
        check_noise([1.0], 1.0, distribution="cauchy")
    with pytest.raises(ValueError, match="level"):
        check_noise([1.0], 1.0, level=2.0)
    with pytest.raises(ValueError, match="arrays and sizes of the first round"):
        check_noise([{"a": [1.0]}, {"b": [1.0]}], 1.0)


def test_it_is_public_and_no_array_is_changed():
    noise = draws().normal(size=100)
    before = noise.copy()
    assert len(fl_epe.check_noise(noise, 1.0)) == len(_CHECKS)
    assert np.array_equal(noise, before)
