"""No analytical ε is below that of the mixture of all sets of rounds that a client may have.

    python simulations/studies/sampled_mixtures.py [--draws 1000000]

Seven schedules with secret rounds, six strategies of noise, three noise multipliers, two
participations in 2 and in 8 rounds. All sets of rounds and their probabilities follow from the
schedule's law; ε of their mixture is that of drawn losses in both directions, with its standard
error. The smallest bound for secret rounds, and `drawn_epsilon` where there is one, must not be
more than three errors below it.

Expected output, 6 minutes on one core: a table whose last line is
"252 cells, 0 bounds below their mixture, 0 of 51 drawn bounds".
"""

import argparse
import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fl_epe.accounting import drawn_epsilon, strategy_bounds, tightest
from fl_epe.mechanism import strategy_matrix
from fl_epe.schedules import Events, ParticipationLaw, make_schedule
from simulations.studies.drawn_losses import epsilon_of

Floats = NDArray[np.float64]

SCHEDULES = (
    "poisson",
    "fixed-size",
    "epochs",
    "balls-in-bins",
    "k-out-of-t",
    "b-min-sep:separation=2",
    "drop-out:of=cyclic,rate=0.5",
)
MECHANISMS = (
    "independent",
    "banded:bands=2",
    "toeplitz:bands=4",
    "tree",
    "toeplitz",
    "blt",
)
NOISES = (0.5, 1.0, 2.0)
PARTICIPATIONS = 2
CLIENTS = 840
DELTA = 1e-3
AT_ONCE = 50_000


def sets_of(events: Events, rounds: int) -> tuple[Floats, Floats]:
    """All sets of rounds of a client, ``(sets, T)``, and their probabilities."""
    found: dict[tuple[int, ...], float] = {}
    for share, kind in events.of_types():
        for chosen, chance in _of_type(kind):
            found[chosen] = found.get(chosen, 0.0) + share * chance
    members = np.zeros((len(found), rounds))
    for row, chosen in zip(members, found, strict=True):
        row[list(chosen)] = 1
    shares = np.array(list(found.values()))
    assert math.isclose(shares.sum(), 1, rel_tol=1e-9)
    return members, shares


def _of_type(events: Events) -> Iterator[tuple[tuple[int, ...], float]]:
    if events.exactly is not None:
        subsets = list(
            itertools.combinations(events.rounds.tolist(), events.exactly)
        )
        yield from ((subset, 1 / len(subsets)) for subset in subsets)
        return
    assert events.most is None
    assert events.counts is None
    assert events.keep == 1
    last = int(events.events.max(initial=-1)) + 1

    def follow(
        event: int, chosen: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], float]]:
        if event >= last:
            yield chosen, 1.0
            return
        rows = np.flatnonzero(events.events == event)
        absent = 1 - float(events.chances[rows].sum())
        if absent > 0:
            yield from (
                (found, absent * p) for found, p in follow(event + 1, chosen)
            )
        for row in rows[events.chances[rows] > 0]:
            chance = float(events.chances[row])
            after = (*chosen, int(events.rounds[row]))
            yield from (
                (found, chance * p)
                for found, p in follow(event + events.rest, after)
            )

    yield from follow(0, ())


def mixture_epsilon(
    members: Floats, shares: Floats, strategy: Floats, noise: float, draws: int
) -> tuple[float, float]:
    """ε of drawn losses, the larger of both directions, and its standard error."""
    means = members @ np.abs(strategy).T / noise
    sizes = np.sum(means**2, axis=1) / 2
    rng = np.random.default_rng(44)
    losses: list[list[Floats]] = [[], []]

    def log_ratios(seen: Floats) -> Floats:
        terms = seen @ means.T
        terms -= sizes
        top = terms.max(axis=1)
        return np.asarray(top + np.log(np.exp(terms - top[:, None]) @ shares))

    for _ in range(-(-draws // AT_ONCE)):
        noise_alone = rng.standard_normal((AT_ONCE, len(strategy)))
        drawn = means[rng.choice(len(means), AT_ONCE, p=shares)]
        losses[0].append(log_ratios(noise_alone + drawn))
        losses[1].append(-log_ratios(noise_alone))
    return max(epsilon_of(np.concatenate(parts), DELTA) for parts in losses)


def bounds(
    law: ParticipationLaw, strategy: Floats | None, noise: float
) -> tuple[float, float]:
    """The smallest bound of theory, and the drawn one; NaN if there is none."""
    results = strategy_bounds(law, strategy, noise, DELTA)
    drawn = drawn_epsilon(law, strategy, noise, DELTA, draws=100_000, seed=1)
    theory = tightest(results, rounds_known=not law.hidden).epsilon
    return theory, math.nan if drawn is None else drawn


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1_000_000)
    draws = parser.parse_args().draws
    cells = below = drawn_cells = drawn_below = 0
    print(
        "| schedule | noise | T | z | mixture | theory | drawn bound |",
        "|---|---|---|---|---|---|---|",
        sep="\n",
    )
    for spec, mechanism, factor in itertools.product(
        SCHEDULES, MECHANISMS, (1, 4)
    ):
        rounds = factor * PARTICIPATIONS
        often = PARTICIPATIONS * (
            0.5 if spec.startswith(("drop-out", "b-min")) else 1
        )
        law = make_schedule(spec, rounds, often).law(CLIENTS)
        short = mechanism == "toeplitz:bands=4" and rounds < 4
        strategy = strategy_matrix("toeplitz" if short else mechanism, rounds)
        assert law.events is not None
        members, shares = sets_of(law.events, rounds)
        for noise in NOISES:
            columns = np.eye(rounds) if strategy is None else strategy
            epsilon, error = mixture_epsilon(
                members, shares, columns, noise, draws
            )
            theory, drawn = bounds(law, strategy, noise)
            cells += 1
            below += theory < epsilon - 3 * error
            drawn_cells += not math.isnan(drawn)
            drawn_below += drawn < epsilon - 3 * error
            print(
                f"| `{spec}` | {mechanism} | {rounds} | {noise:g} | {epsilon:.3f} ± {error:.3f}"
                f" | {theory:.3f} | {'–' if math.isnan(drawn) else f'{drawn:.3f}'} |",
                flush=True,
            )
    print(
        f"{cells} cells, {below} bounds below their mixture, {drawn_below} of {drawn_cells} "
        "drawn bounds"
    )


if __name__ == "__main__":
    main()
