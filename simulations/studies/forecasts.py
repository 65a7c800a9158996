"""Is what a run says of ε before its first round true? Runs on tables and images of one's own.

    python simulations/studies/forecasts.py  # 15 runs, 15 minutes on one core
    python simulations/studies/forecasts.py --tasks linear few-rows --seeds 1

Before round 1 noise, schedule and number of canaries are known, and the real updates are not. They
hide a client too, so the forecast is an upper line: "ε is at most about A …; the audit
would show up to B (in 95% of runs)". Nine tasks have from 65 to a million parameters. Printed are,
for each run and adversary, the model's size d, A, B, the measured ε with its interval, and whether
it is at most B. The last line says how often that was so.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import datasets
import numpy as np
import torch

from fl_epe.auditing import answers
from fl_epe.config import RunConfig
from fl_epe.reporting import number
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, simulate
from fl_epe.tasks import Task, from_datasets

_CLIENTS = 100
_SCALE = 1.1  # of the logits of the truth


@dataclasses.dataclass(frozen=True)
class OwnData:
    """A task as ``fl-epe new`` would write it.

    Attributes:
        widths: of the layers, from the inputs to the classes.
        rows: of the table.
        rounds: of the run.
        seeds: how many runs there are.
        share: of the rarer of two classes.
    """

    widths: tuple[int, ...]
    rows: int = 4000
    rounds: int = 60
    seeds: int = 2
    share: float = 0.5


OWN_DATA = {
    "linear": OwnData((64, 1)),
    "rare-class": OwnData((10, 32, 2), share=0.1),
    "few-rows": OwnData((12, 32, 2), rows=600),
    "table": OwnData((20, 64, 3)),
    "wide-table": OwnData((40, 64, 10), rows=6000),
    "two-layers": OwnData((60, 128, 64, 5)),
    "small-images": OwnData((784, 50, 10), rounds=30, seeds=1),
    "images": OwnData((784, 256, 10), rounds=20, seeds=1),
    "large-images": OwnData((784, 1000, 215, 10), rounds=12, seeds=1),
}


def network(widths: Sequence[int]) -> torch.nn.Module:
    """Linear layers with ReLU between them."""
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def table(own: OwnData) -> datasets.Dataset:
    """Gaussian inputs, and targets by a logistic truth; a single output is a regression."""
    random = np.random.default_rng(0)
    inputs = random.standard_normal((own.rows, own.widths[0])).astype(
        np.float32
    )
    outputs = max(own.widths[-1], 1)
    truth = random.standard_normal((own.widths[0], outputs)) / np.sqrt(
        own.widths[0]
    )
    logits = _SCALE * inputs @ truth + random.gumbel(size=(own.rows, outputs))
    targets = np.argmax(logits, axis=1)
    if outputs == 2:
        margin = logits[:, 1] - logits[:, 0]
        targets = (margin > np.quantile(margin, 1 - own.share)).astype(np.int64)
    values = logits[:, 0].tolist() if outputs == 1 else targets.tolist()
    return datasets.Dataset.from_dict({"x": inputs.tolist(), "y": values})


def task_of(own: OwnData) -> Task:
    """The task on that table, which is partitioned over 100 clients."""

    def model() -> torch.nn.Module:
        return network(own.widths)

    rows = table(own)
    return from_datasets(
        model, rows, inputs="x", targets="y", partition=f"iid:{_CLIENTS}"
    )


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What was said before a run, and what was measured, of one adversary.

    Attributes:
        task: name of the task.
        dim: d.
        sees: of the adversary.
        most: the upper line of ε.
        high: the upper line of what is measured.
        epsilon: measured.
        low: lower end of its interval.
        upper: upper end of its interval.
    """

    task: str
    dim: int
    sees: str
    most: float
    high: float
    epsilon: float
    low: float
    upper: float

    @property
    def holds(self) -> bool:
        """Whether what was measured is at most what was said."""
        return self.epsilon <= self.high

    def __str__(self) -> str:
        limits = f"{number(self.most):>8}  {number(self.high):>8}"
        measured = f"{number(self.epsilon)} ({number(self.low)} – {number(self.upper)})"
        run = f"{self.task:>12}  {self.dim:>9,}  {self.sees:>5}"
        return f"{run}  {limits}  {measured:>22}  {self.holds}"


def forecasts(
    name: str, task: Task, own: OwnData, seed: int
) -> Iterator[Forecast]:
    """Run a task; what was said and measured of both adversaries."""
    config = RunConfig(
        clients=task.num_clients, rounds=own.rounds, clients_per_round=24
    )
    job = Job(task, config, Seeds.derive(seed), evaluate_every=own.rounds)
    record = simulate(job, workers=1)
    for predicted, answer in zip(
        config.load.forecasts, answers(record), strict=True
    ):
        estimate = answer.estimate
        assert estimate is not None
        measured = estimate.epsilon, estimate.low, estimate.high
        yield Forecast(
            name,
            task.dim,
            predicted.sees,
            predicted.epsilon,
            predicted.high,
            *measured,
        )


def main(
    argv: Sequence[str] | None = None, show: Callable[[str], None] = print
) -> list[Forecast]:
    """Run the tasks, and print a row for each run and adversary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--tasks", nargs="+", choices=list(OWN_DATA), default=list(OWN_DATA)
    )
    parser.add_argument("--seeds", type=int, help="runs of each task")
    parser.add_argument("--rounds", type=int, help="of each run")
    options = parser.parse_args(argv)
    show(
        "        task          d   sees  at most  measured at most     measured  holds"
    )
    forecasts_made = list[Forecast]()
    for name in options.tasks:
        data = OWN_DATA[name]
        data = dataclasses.replace(data, rounds=options.rounds or data.rounds)
        task = task_of(data)
        for seed in range(options.seeds or data.seeds):
            for forecast in forecasts(name, task, data, seed):
                show(str(forecast))
                forecasts_made.append(forecast)
    show(
        f"{sum(forecast.holds for forecast in forecasts_made)} of {len(forecasts_made)} "
        "forecasts hold"
    )
    return forecasts_made


if __name__ == "__main__":
    main()
