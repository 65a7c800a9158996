"""Tables 2 and 3 of `audit_flower_dp.py`: the adaptive clip norm, and rounds with odd replies."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Sequence

import numpy as np
from flwr.app import ArrayRecord
from flwr.clientapp.mod import adaptiveclipping_mod
from flwr.clientapp.typing import Mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)
from numpy.typing import NDArray

from fl_epe.flower import InProcessGrid
from fl_epe.mechanism import AdaptiveClip
from simulations.shared.flower_federation import (
    Model,
    client_app,
    one_round,
    seed_flower,
    to_record,
)

Floats = NDArray[np.float64]

NODES, QUANTILE, RATE, COUNT_STD = 50, 0.5, 0.2, 2.5
CLOSE = 0.1
"""How far from the median a clip norm may end and still count as near it."""


# Table 2: the clip norm of every round, against norms whose median is 1.


def update_norms(rounds: int, seed: int) -> Floats:
    """Norms of the clients' updates, log-normal around 1, shape ``(rounds, NODES)``."""
    return np.asarray(
        np.exp(np.random.default_rng(seed).normal(0, 0.5, (rounds, NODES)))
    )


def flowers_clip_norms(
    wrapper: type[DifferentialPrivacyServerSideAdaptiveClipping]
    | type[DifferentialPrivacyClientSideAdaptiveClipping],
    mods: Sequence[Mod],
    initial: float,
    norms: Floats,
    seed: int,
) -> Floats:
    """The clip norm that Flower uses in each round, shape ``(rounds,)``."""
    seed_flower(seed)
    strategy = wrapper(
        FedAvg(fraction_evaluate=0),
        1.0,
        NODES,
        initial,
        QUANTILE,
        RATE,
        COUNT_STD,
    )
    used: list[float] = []

    def note(server_round: int, arrays: ArrayRecord) -> None:
        used.append(strategy.clipping_norm)  # of the round that comes next

    def answer(model: Model, node: int, server_round: int) -> Model:
        return {"w": model["w"] + norms[server_round - 1, node] * np.eye(10)[0]}

    with InProcessGrid(client_app(answer, mods), NODES) as grid:
        start = to_record({"w": np.zeros(10)})
        strategy.start(grid, start, len(norms), evaluate_fn=note)
    return np.array(used[:-1])


def our_clip_norms(initial: float, norms: Floats, seed: int) -> Floats:
    """The clip norm that `AdaptiveClip` uses in each round, shape ``(rounds,)``."""
    rng = np.random.default_rng(seed)
    clip = AdaptiveClip(initial, QUANTILE, RATE, COUNT_STD, NODES)
    used = [clip.init()]
    for row in norms[:-1]:
        used.append(
            clip.update(used[-1], float(np.sum(row <= used[-1])), NODES, rng)
        )
    return np.array(used)


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """A clip norm over the rounds of a run.

    Attributes:
        name: whose clip norm it is.
        clip_norms: in units of the true median, shape ``(rounds,)``.
    """

    name: str
    clip_norms: Floats

    @property
    def verdict(self) -> str:
        """Whether it ends near the median."""
        off = abs(self.clip_norms[-1] - 1)
        return "at the median" if off <= CLOSE else "elsewhere"


def trajectories(rounds: int, seed: int) -> list[Trajectory]:
    """Clip norms that begin far below and far above the median."""
    norms = update_norms(rounds, seed)
    server = DifferentialPrivacyServerSideAdaptiveClipping
    client = DifferentialPrivacyClientSideAdaptiveClipping
    rows = []
    for initial in (0.05, 20.0):
        on_server = flowers_clip_norms(server, (), initial, norms, seed)
        on_client = flowers_clip_norms(
            client, (adaptiveclipping_mod,), initial, norms, seed
        )
        rows += [
            Trajectory("Flower, server side", on_server),
            Trajectory("Flower, client side", on_client),
            Trajectory(
                "fl_epe.AdaptiveClip", our_clip_norms(initial, norms, seed)
            ),
        ]
    return rows


# Table 3: one round each, mostly without noise.

CLIP = 1.0
SMALL = 0.5
"""Norm of a harmless update."""


@dataclasses.dataclass(frozen=True)
class Check:
    """One round with something odd in it.

    Attributes:
        name: what is odd.
        run: returns whether all is well, and what happened in words.
    """

    name: str
    run: Callable[[], tuple[bool, str]]

    def result(self) -> tuple[bool, str]:
        """Call `run`; an exception of the wrapper counts as a defect."""
        try:
            with np.errstate(all="ignore"):
                return self.run()
        except Exception as error:  # noqa: BLE001 - any exception is a finding
            return (
                False,
                f"raises {type(error).__name__}: {textwrap.shorten(str(error), 40)}",
            )


def fixed(
    n: int, noise_multiplier: float = 0.0
) -> DifferentialPrivacyServerSideFixedClipping:
    """The wrapper that the checks are about."""
    base = FedAvg(fraction_evaluate=0)
    return DifferentialPrivacyServerSideFixedClipping(
        base, noise_multiplier, CLIP, n
    )


def _odd_update(odd: float) -> tuple[bool, str]:
    """One of four clients has ``odd`` in its update (0: in every entry), the others a small one."""
    usual = {"w": np.array([SMALL, 0.0, 0.0])}
    strange = {"w": np.zeros(3) if odd == 0 else np.array([odd, 0.0, 0.0])}
    after = one_round(
        fixed(4), {"w": np.zeros(3)}, [strange, usual, usual, usual]
    )
    if after is None:
        return False, "the round is skipped"
    if not np.all(np.isfinite(after["w"])):
        return False, f"the model is poisoned: {after['w']}"
    return True, f"the model moves by {np.linalg.norm(after['w']):.3g}"


def _vector_counter() -> tuple[bool, str]:
    """A 1-d int64 array beside the weights goes up by one."""
    before = {"w": np.zeros(3), "seen": np.array([5])}
    answer = {"w": np.array([SMALL, 0.0, 0.0]), "seen": np.array([6])}
    after = one_round(fixed(2), before, [answer, answer])
    return (
        after is not None,
        "the round is skipped" if after is None else f"ends at {after}",
    )


def _scalar_counter() -> tuple[bool, str]:
    """A 0-d integer goes up by 100, as a count of batches does."""
    before = {"w": np.zeros(3), "batches": np.array(0)}
    answer = {"w": np.array([SMALL, 0.0, 0.0]), "batches": np.array(100)}
    after = one_round(fixed(2), before, [answer, answer])
    if after is None:
        return False, "the round is skipped"
    moved, norm = float(after["batches"]), float(np.linalg.norm(after["w"]))
    words = f"at C = {CLIP:g} it moves by {moved:g}; the weights' {SMALL:g} becomes {norm:.3g}"
    return abs(moved) <= CLIP and abs(norm - SMALL) < 1e-6, words


def _another_order() -> tuple[bool, str]:
    """Clients answer with the arrays in another order, under the right names."""
    before, moved = (
        {"a": np.zeros(3), "b": np.full(3, 10.0)},
        np.array([0.1, 0.0, 0.0]),
    )
    answer = {"b": before["b"] + moved, "a": before["a"] + moved}
    after = one_round(fixed(2), before, [answer, answer])
    if after is None:
        return False, "the round is skipped"
    moves = [
        float(np.linalg.norm(after[name] - before[name])) for name in before
    ]
    words = f"moves of 0.1 become {moves[0]:.3g} and {moves[1]:.3g}"
    return bool(np.allclose(moves, 0.1)), words


def _one_error() -> tuple[bool, str]:
    """One of ten clients fails."""
    usual = {"w": np.array([SMALL, 0.0, 0.0])}
    after = one_round(fixed(10), {"w": np.zeros(3)}, [None, *[usual] * 9])
    return (
        after is not None,
        "the round is skipped" if after is None else "the others are used",
    )


def _global_noise() -> tuple[bool, str]:
    """Two rounds after the same ``np.random.seed``, which any code in the process may call."""
    usual, released = {"w": np.full(3, 0.1)}, []
    for _ in range(2):
        seed_flower(5)
        released.append(
            one_round(fixed(2, 1.0), {"w": np.zeros(3)}, [usual, usual])
        )
    first, second = released
    repeated = (
        first is not None
        and second is not None
        and np.array_equal(first["w"], second["w"])
    )
    return (
        not repeated,
        f"np.random.seed {'repeats' if repeated else 'does not repeat'} the noise",
    )


def _adaptive_noise() -> tuple[bool, str]:
    """Compare the noise with what the round's own clip norm and the next one ask for."""
    dim, n = 20_000, 10
    strategy = DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(fraction_evaluate=0), 0.1, n, CLIP, QUANTILE, 2.0, 0.5
    )
    z = strategy.noise_multiplier  # of the sum: what the count leaves
    small = {"w": np.eye(1, dim)[0] * 1e-6}
    after = one_round(strategy, {"w": np.zeros(dim)}, [small] * n)
    if after is None:
        return False, "the round is skipped"
    std = float(np.std(after["w"].astype(np.float64))) * n / z
    following = strategy.clipping_norm
    words = (
        f"std·n/z = {std:.4g}, where C_t = {CLIP:g} and C_t+1 = {following:.4g}"
    )
    return abs(std - CLIP) < abs(std - following), words


CHECKS = (
    Check("a zero update", lambda: _odd_update(0.0)),
    Check("NaN in an update", lambda: _odd_update(np.nan)),
    Check("infinity in an update", lambda: _odd_update(np.inf)),
    Check("1-d integer array", _vector_counter),
    Check("0-d integer array", _scalar_counter),
    Check("arrays in another order", _another_order),
    Check("one client fails", _one_error),
    Check("noise can be repeated", _global_noise),
    Check("noise of an adaptive round", _adaptive_noise),
)
