"""A federation of silos, one of which is audited; gradients do not depend on the model."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fl_epe.auditing import FederationFacts, SiloAnswer, SiloLine
from fl_epe.dp_sgd import PlainDPSGD
from fl_epe.silos import audit_records, final_answer

DELTA = 1e-5
LEARNING_RATE = 0.1


@dataclasses.dataclass
class Silo:
    """The audited silo, and its federation.

    Attributes:
        options: of `audit_records`.
        other_noise: z of each of the other silos.
        optimizer: makes a round's optimizer, from the model, the noise's seed and the round.
        train: takes a round's steps, from the optimizer and their batch sizes.
        after: told the number of the round, its audit and the trained model; what is sent.
        server: the next model, from the last one, the mean update and the round.
    """

    steps: int = 20
    rounds: int = 8
    rate: float = 0.02
    noise: float = 0.6
    dim: int = 2000
    batch: int = 100
    count: int = 3
    seed: int = 0
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    skipped: Sequence[int] = ()
    optimizer: Callable[..., Any] | None = None
    train: Callable[[Any, Sequence[int]], None] | None = None
    server: Callable[[np.ndarray, np.ndarray, int], np.ndarray] | None = None
    where: Any = dataclasses.field(default_factory=dict)
    sent: Callable[[np.ndarray], dict[str, np.ndarray]] = lambda model: {
        "w": model
    }

    def facts(self) -> FederationFacts:
        """As a server tells them, which sees no uploads."""
        taken = [t + 1 for t in range(self.rounds) if t not in self.skipped]
        return FederationFacts(self.rounds, tuple(taken), self.count)

    def local(self, model: np.ndarray, noise: int, index: int) -> np.ndarray:
        """The silo's model after a round, in which it is audited."""
        make = self.optimizer or self.plain
        optimizer = make(model, noise, index)
        options = {
            "num_canaries": 100,
            "seed": self.seed,
            "sample_rate": self.rate,
            "silos": self.count,
            **self.options,
        }
        with audit_records(
            self.where, optimizer, delta=DELTA, **options
        ) as audit:
            records = int(self.batch / self.rate)
            rng = np.random.default_rng((self.seed, 7, index))
            sizes = rng.binomial(records, self.rate, self.steps).tolist()
            if self.train is not None:
                self.train(optimizer, sizes)
            else:
                for size in sizes:
                    optimizer.step(np.zeros((size, self.dim), np.float32))
        trained = np.asarray(optimizer.theta, np.float32)
        audit.sent(self.sent(trained))
        self.audit = audit
        return trained

    def plain(self, model: np.ndarray, noise: int, index: int) -> PlainDPSGD:
        """A round's optimizer."""
        return PlainDPSGD(
            model,
            learning_rate=LEARNING_RATE,
            noise_multiplier=self.noise,
            max_grad_norm=1.0,
            expected_batch_size=self.batch,
            seed=noise,
        )

    def run(
        self, start: np.ndarray | None = None, first: int = 0
    ) -> np.ndarray:
        """The last model, after the rounds from ``first`` on."""
        model = np.zeros(self.dim, np.float32) if start is None else start
        rng = np.random.default_rng((self.seed, 5))
        deviation = (
            LEARNING_RATE * self.noise * np.sqrt(self.steps) / self.batch
        )
        for index in range(self.rounds):
            others = rng.normal(
                0, deviation, (self.count - 1, self.dim)
            ).astype(np.float32)
            noise = int(rng.integers(2**60))
            if index < first:
                continue
            updates = list(others)
            if index not in self.skipped:
                updates.append(self.local(model, noise, index) - model)
            mean = np.asarray(np.mean(updates, axis=0, dtype=np.float32))
            step = self.server or (lambda model, mean, _: model + mean)
            model = np.asarray(step(model, mean, index), np.float32)
        return model

    def answer(self, facts: FederationFacts | None = None) -> SiloAnswer:
        """What the silo says at the end of a whole run."""
        return final_answer(
            self.where, {"w": self.run()}, facts or self.facts()
        )


def by_adversary(answer: SiloAnswer) -> dict[str, Any]:
    """The lines of an answer by their adversary."""
    return {line.adversary: line for line in answer.lines}


def holds_limit(line: SiloLine) -> bool:
    """Whether the interval of a line holds the linear limit."""
    if line.low is None or line.linear_limit is None or line.high is None:
        return False
    return line.low < line.linear_limit < line.high
