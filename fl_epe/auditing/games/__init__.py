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

from typing import TYPE_CHECKING

from fl_epe.auditing.games.canary import (
    Canary,
    constant,
    dirac,
    fixed,
    once,
    random_coordinate,
    random_direction,
)
from fl_epe.auditing.games.game import ADD_OR_REMOVE, SUBSTITUTE, ZERO_OUT, Game, replaced_by
from fl_epe.auditing.games.hidden_state import hidden_state_ratio, play_hidden_state
from fl_epe.auditing.games.mechanism import Mechanism, NoisySum, Updates, clipped, of_function
from fl_epe.auditing.games.play import play_game, play_statistics, play_two_runs
from fl_epe.auditing.games.sensitivity import (
    measured_batch,
    measured_sensitivity,
    sensitivity_is_possible,
)
from fl_epe.auditing.games.statistic import (
    ALONG_CANARY,
    LARGEST_ALONG_CANARY,
    Statistic,
    Transcript,
    along_direction,
    coordinate,
    log_likelihood_ratio,
)
from fl_epe.auditing.games.structured import between_steps, between_tensors, nearest_noise, whitened
from fl_epe.lazy import lazy_names

if TYPE_CHECKING:
    from fl_epe.auditing.games import zoo
    from fl_epe.auditing.games.zoo import ZOO, Specimen

__all__ = [
    "ADD_OR_REMOVE",
    "ALONG_CANARY",
    "LARGEST_ALONG_CANARY",
    "SUBSTITUTE",
    "ZERO_OUT",
    "ZOO",
    "Canary",
    "Game",
    "Mechanism",
    "NoisySum",
    "Specimen",
    "Statistic",
    "Transcript",
    "Updates",
    "along_direction",
    "between_steps",
    "between_tensors",
    "clipped",
    "constant",
    "coordinate",
    "dirac",
    "fixed",
    "hidden_state_ratio",
    "log_likelihood_ratio",
    "measured_batch",
    "measured_sensitivity",
    "nearest_noise",
    "of_function",
    "once",
    "play_game",
    "play_hidden_state",
    "play_statistics",
    "play_two_runs",
    "random_coordinate",
    "random_direction",
    "replaced_by",
    "sensitivity_is_possible",
    "whitened",
    "zoo",
]

__getattr__, __dir__ = lazy_names(  # its specimens are made when they are looked at
    __name__, {"fl_epe.auditing.games.zoo": ("ZOO", "Specimen", "zoo")}
)
