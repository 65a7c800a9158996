"""Every command of ``fl-epe`` in an environment with the base dependencies alone.

Run in an empty folder. Each works, or its error says which extra has what it needs.
"""

import contextlib
import io
from pathlib import Path
from statistics import NormalDist

from fl_epe.cli.main import COMMANDS, main
from fl_epe.limit import limit_record
from fl_epe.schedules import ShuffledEpochs

DATA, SIM = "pip install 'fl-epe[data]'", "pip install 'fl-epe[sim]'"
NOISE = "advise noise --target-epsilon 3"
# Words after fl-epe, and what is said where an extra is missing; "" if the command works.
TRIED = {
    "run digits": SIM,
    "resume run": "to hold an unfinished run",
    "report run": "",
    "report run other --output both": "",
    "export run/record.npz shared.npz": "",
    "compare --schedules epochs poisson --rounds 8 --workers 1 --output grid": "",
    "compare --task digits --rounds 8 --workers 1 --output trained": SIM,
    f"{NOISE} --rounds 8": "",
    f"{NOISE} --like run": "",
    "advise canaries --clients 100": "",
    "advise log log.csv --noise-multiplier 1": "",
    "estimate scores.csv": "",
    "conform mechanism:release --noise-multiplier 1 --delta 1e-5 --trials 200": "",
    "schedules": "",
    "new": "",
    "new mine.py --data scores.csv --targets observed": SIM,
    "data convert emnist scores.csv target": DATA,
}
MECHANISM = """
def release(updates, random):
    return updates.sum(axis=0) + random.normal(size=updates.shape[1])
"""


def write_inputs() -> None:
    """The files that the commands read."""
    scores = [NormalDist().inv_cdf((place + 0.5) / 60) for place in range(60)]
    rows = [f"{2 + score},{score}" for score in scores]
    Path("scores.csv").write_text("\n".join(["observed,unobserved", *rows, ""]))
    took_part = [
        f"{t},{client}" for t in range(6) for client in range(t % 2, 20, 2)
    ]
    Path("log.csv").write_text("\n".join(["round,client_id", *took_part, ""]))
    Path("mechanism.py").write_text(MECHANISM)
    for name in ("run", "other"):
        Path(name).mkdir()
        record = limit_record(
            ShuffledEpochs(8, 2), 1.0, 1e-5, num_canaries=20, beside=100
        )
        record.save(Path(name, "record.npz"))


def fault_of(words: str, expected: str) -> str:
    """What is wrong with how a command ended; "" if nothing is."""
    printed, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(errors),
    ):
        status = main(words.split())
    said = " ".join(errors.getvalue().split())
    # A report that warns ends with 3: the command worked.
    works = (
        status in (0, 3) if not expected else status == 2 and expected in said
    )
    return (
        ""
        if works
        else f"fl-epe {words}: status {status}, {said or printed.getvalue()}"
    )


if __name__ == "__main__":
    write_inputs()
    tried = [
        " ".join(words.split()[: len(name.split())])
        for words in TRIED
        for name in COMMANDS
    ]
    untried = [
        name
        for name, (place, _) in COMMANDS.items()
        if place and name not in tried
    ]
    faults = [f"fl-epe {name} is not tried" for name in untried]
    faults += filter(None, (fault_of(*each) for each in TRIED.items()))
    raise SystemExit("\n".join(faults) or None)
