"""Which method finds which broken mechanism with how many observations, and do their twins pass?

    python simulations/audits/broken_mechanisms.py           # 20 games of 1,000 observations
    python simulations/audits/broken_mechanisms.py --quick   # one game of 200: to see that it works

Tramèr et al. (2022) debugged one mechanism by an audit, and list how its mistake is met elsewhere.
Here are twelve mistakes (`fl_epe.auditing.games.ZOO`), each beside a correct twin that claims the
same. The methods are fixed in advance: four bounds by the inner product with the canary, and by the
statistic that looks for the bug where there is one; and so is the one named for each bug, the bound
"gdp" with the latter. A bug counts as found by a number of observations of each world if every game
disproves the claim at 99%. A false alarm is a game in which that is said of the twin.

The last table plays the same games with canaries just as long as the clip norm.

Expected (2026-11-23, two cores shared with much other work, where it took 29 minutes): the
named method finds 12 of 12 within 500 observations of each world, and disproves the claim of a twin
in 0 of 240 games. Observations with which each of 20 games disproves the claim at 99%, of at most
1,000 (–: missed)::

    bug                     statistic              clopper-pearson  weighted  gdp  mean  sign test
    clips-the-mean          along the canary                   500       500   20    10          –
    sensitivity-over-batch  along the canary                   500       500   20    10          –
    few-seeds               along the canary                     –         –    –     –          –
    few-seeds               nearest of 100 noises              500       500   20    10          –
    too-little-noise        along the canary                     –         –  200    50          –
    shared-noise            along the canary                     –         –    –     –          –
    shared-noise            between tensors                    500       500   20    10          –
    repeated-noise          along the canary                     –         –    –     –          –
    repeated-noise          between steps 2 apart                –         –   50    10          –
    noise-of-workers        along the canary                     –         –  200    50          –
    weights-by-examples     along the canary                     –      1000   50    20          –
    one-tensor-unclipped    along the canary                   500       500   20    10          –
    adaptive-clip-sign      along the canary                     –         –    –     –          –
    adaptive-clip-sign      clip norm                            –         –    –     –         10
    wrong-clip-norm         along the canary                     –         –  200    50          –
    wrong-factor            along the canary                     –         –    –     –          –
    wrong-factor            whitened                             –         –  500   100          –

Of the methods that were not named, "mean" along the canary has 6 false alarms: few-seeds 2,
too-little-noise, shared-noise, weights-by-examples and wrong-clip-norm 1 each. It is exact, and 11
twins have just the noise that they claim, so that 1 in 100 of its 380 tests of them is to fail: 3.8
are expected, and 6 or more come about in one of five such series. No other method has any.

With canaries of the clip norm the named method finds clips-the-mean, sensitivity-over-batch,
one-tensor-unclipped and wrong-clip-norm in 0 of 20 games of 1,000 observations, and the seven
others that leak in 20 of 20.

The sanity checks of the sensitivity find clips-the-mean, sensitivity-over-batch,
weights-by-examples, one-tensor-unclipped and wrong-clip-norm; B·s ≥ L misses the first of these.

The paper gives no such table: it audits one bug, sensitivity-over-batch, with a trained network for
each observation, a loss as the statistic and Clopper-Pearson limits.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from fl_epe.auditing import games, lower_bound
from fl_epe.audits import AuditSettings
from fl_epe.audits.broken import result_of
from fl_epe.audits.hunt import BOUNDS_TRIED, NAMED, hunt
from fl_epe.reporting import AuditTable

_CONFIDENCE, _DELTA, _CLIP_NORM, _LONG = 0.99, 1e-5, 1.0, 100.0


def short_canaries(observations: int, count: int) -> AuditTable:
    """In how many games the named bound finds a bug if the canary is as long as the clip norm."""
    rows = []
    for name, specimen in games.ZOO.items():
        if specimen.leaks:
            short = dataclasses.replace(specimen, canary=_scaled(specimen.canary))
            claim = short.claim(_DELTA)
            found = 0
            for seed in range(count):
                scores = short.play(short.broken, observations, seed)[-1]
                bound = lower_bound(scores, _DELTA, confidence=_CONFIDENCE, method=NAMED)
                found += bool(bound > claim)
            rows.append((name, short.statistics[-1].name, found, count))
    title = f"With canaries of the clip norm: bound {NAMED}, {observations:,} observations"
    return AuditTable(("bug", "statistic", "games that find it", "of"), rows, title)


def _scaled(canary: games.Canary) -> games.Canary:
    scale = _CLIP_NORM / _LONG
    return dataclasses.replace(canary, vector=lambda step: canary.vector(step) * scale)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one game of 200 observations")
    parser.add_argument("--seed", type=int, default=1, help="of the first game")
    options = parser.parse_args(argv)
    most, count = (200, 1) if options.quick else (1000, 20)
    bounds = (NAMED,) if options.quick else BOUNDS_TRIED
    hunts = []
    for name in games.ZOO:
        hunts.append(
            hunt(
                name,
                most=most,
                count=count,
                delta=_DELTA,
                confidence=_CONFIDENCE,
                seed=options.seed,
                bounds=bounds,
            )
        )
        print(f"… {name}", file=sys.stderr, flush=True)
    settings = AuditSettings(
        observations=most, delta=_DELTA, confidence=_CONFIDENCE, seed=options.seed
    )
    print(result_of(hunts, settings, _CONFIDENCE).text())
    for one in hunts:
        for method, alarms in one.alarms.items():
            if alarms:
                print(f"False alarms: {one.name}, {', '.join(method)}: {alarms} of {count}")
    print()
    print(short_canaries(most, count).text())


if __name__ == "__main__":
    main()
