"""Games against a mechanism: what differs between two worlds, a canary, a mechanism, a statistic.

Each is a part of its own and goes with every other; `play_game` puts them together and gives
`Scores`, from which any bound and any estimate is made.

Examples:
    >>> from fl_epe.auditing import games
    >>> noisy_sum = games.NoisySum(clip_norm=1.0, noise_multiplier=1.0)
    >>> scores = games.play_game(
    ...     noisy_sum, games.ADD_OR_REMOVE, games.dirac(dim=20), observations=1000, seed=1
    ... )
    >>> bool(scores.observed.mean() > scores.unobserved.mean() + 0.5)
    True
"""

from fl_epe.auditing.games.canary import Canary, constant, dirac, fixed, random_direction
from fl_epe.auditing.games.game import ADD_OR_REMOVE, SUBSTITUTE, ZERO_OUT, Game
from fl_epe.auditing.games.mechanism import AuditedMechanism, NoisySum, clipped
from fl_epe.auditing.games.play import play_game, play_two_runs
from fl_epe.auditing.games.sensitivity import measured_sensitivity
from fl_epe.auditing.games.statistic import ALONG_CANARY, Statistic, Transcript

__all__ = [
    "ADD_OR_REMOVE",
    "ALONG_CANARY",
    "SUBSTITUTE",
    "ZERO_OUT",
    "AuditedMechanism",
    "Canary",
    "Game",
    "NoisySum",
    "Statistic",
    "Transcript",
    "clipped",
    "constant",
    "dirac",
    "fixed",
    "measured_sensitivity",
    "play_game",
    "play_two_runs",
    "random_direction",
]
