"""A run that logs four rounds, says so and waits: ``python killed_logging.py LOGGER FOLDER``."""

import math
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from fl_epe.loggers import Loggers


def tell(
    logger: str, folder: Path, rounds: Iterable[int], *, resumed: bool
) -> Loggers:
    """Log rounds; a logger that fails is an error."""

    def fail(text: str) -> None:
        raise AssertionError(text)

    loggers = Loggers(logger, folder, fail)
    for t in rounds:
        values = {
            "epsilon-all": 1.5 * t,
            "train_loss": math.nan,
            "clip_norm": math.inf,
        }
        loggers.log(t, values, resumed=resumed)
    return loggers


if __name__ == "__main__":
    tell(sys.argv[1], Path(sys.argv[2]), range(4), resumed=False)
    print("told", flush=True)
    signal.pause()
