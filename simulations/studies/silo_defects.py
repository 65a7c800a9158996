"""Defects of a silo that its audit must find by name, and sound silos that it must not accuse.

    python simulations/studies/silo_defects.py [--runs 20] [--sound 100] [--proofs]

Three silos of 5,000 synthetic records train a network of 2,762 parameters with Opacus, 20 steps a
round, five rounds; silo "south" has the defect. ``make_private`` is called anew in every round, of
one ``PrivacyEngine`` for each silo, so that a sound silo's accountant counts all steps. A defect is
found if the answer of "south" has a fault; with ``--proofs``, which take most of the time, also if
it proves more than theory allows. It prints for each defect how often it was found, and how many
sound silos were accused.
"""

import argparse
import collections
import contextlib
import copy
import dataclasses
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from opacus import PrivacyEngine

from fl_epe.auditing import FederationFacts, SiloAnswer
from fl_epe.silos import audit_records, final_answer, lines

DELTA = 1e-5
SILOS = ("north", "south", "west")
DEFECTIVE = "south"
RECORDS, BATCH, ROUNDS = 5000, 250, 5
NOISE, CLIP_NORM, LEARNING_RATE = 1.0, 1.0, 0.5
FEATURES, HIDDEN, CLASSES = 32, 64, 10
CANARIES = 200
RESTARTED = 2  # index of the round before which a silo was restarted

Data = tuple[torch.Tensor, torch.Tensor]
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def network() -> torch.nn.Module:
    """Of 2,762 parameters."""
    layers = (
        torch.nn.Linear(FEATURES, HIDDEN),
        torch.nn.Tanh(),
        torch.nn.Linear(HIDDEN, CLASSES),
    )
    return torch.nn.Sequential(*layers)


class Records(torch.utils.data.Dataset[tuple[torch.Tensor, ...]]):
    """As ``TensorDataset``, but a batch is read at once."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(part[index] for part in self.data)

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices

    def batch(self, indices: list[int]) -> tuple[torch.Tensor, ...]:
        """The records with these indices."""
        return tuple(part[indices] for part in self.data)


def records(seed: int) -> Data:
    """A silo's: Gaussian inputs, with labels by a random linear rule."""
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.randn(RECORDS, FEATURES, generator=rng)
    labels = (inputs @ torch.randn(FEATURES, CLASSES, generator=rng)).argmax(
        dim=1
    )
    return inputs, labels


@dataclasses.dataclass
class Silo:
    """A silo of a federation, sound or with a defect.

    Attributes:
        name: of the silo.
        data: its records.
        alter: told the optimizer that ``make_private`` returned and the index of the round, before
            training; makes the defect.
        options: of ``make_private``, by the index of the round.
        forgets: whether each round has a ``PrivacyEngine`` of its own.
        public_from: index of the round from which ``make_private`` is not called.
        engine: of all rounds.
        where: the audit is kept.
    """

    name: str
    data: Data
    alter: Callable[[Any, int], None] = lambda optimizer, index: None
    options: Callable[[int], dict[str, Any]] = lambda index: {}
    forgets: bool = False
    public_from: int = ROUNDS
    engine: PrivacyEngine = dataclasses.field(default_factory=PrivacyEngine)
    where: dict[str, Any] = dataclasses.field(default_factory=dict)

    def train(self, start: torch.nn.Module, index: int) -> torch.nn.Module:
        """The silo's model after a round of one epoch."""
        model = copy.deepcopy(start)
        private, optimizer, batches = self._prepare(model, index)
        options: dict[str, Any] = {"num_canaries": CANARIES, "silo": self.name}
        options["silos"] = len(SILOS)
        with audit_records(
            self.where, optimizer, delta=DELTA, **options
        ) as audit:
            for inputs, labels in batches:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(
                    private(inputs), labels
                )
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        audit.sent(
            {name: p.detach().numpy() for name, p in model.named_parameters()}
        )
        return model

    def _prepare(
        self, model: torch.nn.Module, index: int
    ) -> tuple[Any, Any, Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        dataset = Records(self.data)
        loader = torch.utils.data.DataLoader(
            dataset, BATCH, collate_fn=dataset.batch
        )
        if index >= self.public_from:
            return model, optimizer, loader
        engine = PrivacyEngine() if self.forgets else self.engine
        private, optimizer, batches = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=NOISE,
            max_grad_norm=CLIP_NORM,
            **self.options(index),
        )
        self.alter(optimizer, index)
        return private, optimizer, batches


def scale_noise(factor: float) -> Callable[[Any, int], None]:
    """A defect: noise has this part of its standard deviation."""

    def alter(optimizer: Any, _: int) -> None:
        def add_noise() -> None:
            claimed = optimizer.noise_multiplier
            optimizer.noise_multiplier = factor * claimed
            try:
                sound()
            finally:
                optimizer.noise_multiplier = claimed

        sound, optimizer.add_noise = optimizer.add_noise, add_noise

    return alter


def skip_clipping(optimizer: Any, _: int) -> None:
    """A defect: gradients join the sum as long as they are."""

    def clip_and_accumulate() -> None:
        claimed = optimizer.max_grad_norm
        optimizer.max_grad_norm = 1e6
        try:
            sound()
        finally:
            optimizer.max_grad_norm = claimed

    sound, optimizer.clip_and_accumulate = (
        optimizer.clip_and_accumulate,
        clip_and_accumulate,
    )


def seeded_alike(_: int) -> dict[str, Any]:
    """A defect: every round has the same noise."""
    return {"noise_generator": torch.Generator().manual_seed(20_261_127)}


DEFECTS: dict[str, dict[str, Any]] = {
    "no noise": {"alter": scale_noise(0.0)},
    "noise halved": {"alter": scale_noise(0.5)},
    "clipping off": {"alter": skip_clipping},
    "the same seed in every round": {"options": seeded_alike},
    "make_private forgotten after a restart": {"public_from": RESTARTED},
    "an accountant that forgets rounds": {"forgets": True},
}


def federation(
    seed: int, *, proofs: bool = False, **defect: Any
) -> list[SiloAnswer]:
    """What three silos say, of which `DEFECTIVE` has the defect, if there is one.

    Their answers have lines only with ``proofs``.
    """
    torch.manual_seed(seed)
    silos = [
        Silo(
            name,
            records(1000 * seed + i),
            **(defect if name == DEFECTIVE else {}),
        )
        for i, name in enumerate(SILOS)
    ]
    model = network()
    for index in range(ROUNDS):
        vectors = [
            torch.nn.utils.parameters_to_vector(
                silo.train(model, index).parameters()
            ).detach()
            for silo in silos
        ]
        mean = torch.stack(vectors).mean(dim=0)
        torch.nn.utils.vector_to_parameters(mean, model.parameters())
    facts = FederationFacts(ROUNDS, tuple(range(1, ROUNDS + 1)), len(SILOS))
    last = {name: p.detach().numpy() for name, p in model.named_parameters()}
    with contextlib.ExitStack() as short:
        if not proofs:
            short.enter_context(mock.patch.object(lines, "_MEASURES", {}))
        return [final_answer(silo.where, last, facts) for silo in silos]


def accusations(answer: SiloAnswer) -> list[str]:
    """What is said against a silo."""
    above = [
        f"proved {line.proved:.3g} against the {line.adversary}, above theory's {line.theory:.3g}"
        for line in answer.lines
        if line.exceeds_theory
    ]
    return [*answer.faults, *above]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=20, help="federations with each defect"
    )
    parser.add_argument(
        "--sound", type=int, default=100, help="federations without"
    )
    parser.add_argument("--only", choices=DEFECTS, help="one defect")
    parser.add_argument(
        "--proofs", action="store_true", help="also what is proved"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    accused = collections.Counter[str]()
    sound = 0
    print(
        "defect                                    found  first words",
        flush=True,
    )
    for name, defect in DEFECTS.items():
        if options.only not in (None, name):
            continue
        detected, first = 0, collections.Counter[str]()
        for run in range(options.runs):
            for answer in federation(
                10_000 + run, proofs=options.proofs, **defect
            ):
                texts = accusations(answer)
                if answer.silo == DEFECTIVE:
                    detected += bool(texts)
                    first.update(texts[:1])
                else:
                    sound += 1
                    accused.update(texts[:1])
        words = first.most_common(1)[0][0] if first else "nothing"
        print(
            f"{name:40}  {detected:2} of {options.runs}  {words[:160]}",
            flush=True,
        )
    print(
        f"beside them, sound: {accused.total()} of {sound} silos accused",
        flush=True,
    )
    sound_answers = (
        federation(seed, proofs=options.proofs) for seed in range(options.sound)
    )
    answers = list(itertools.chain.from_iterable(sound_answers))
    other_accusations = collections.Counter(
        text for silo_answer in answers for text in accusations(silo_answer)[:1]
    )
    print(
        f"sound federations: {other_accusations.total()} of {len(answers)} silos accused"
    )
    for text, times in (other_accusations + accused).items():
        print(f"  {times} times: {text}")
    noted = collections.Counter(
        text for silo_answer in answers for text in silo_answer.notes
    )
    for text, times in noted.items():
        print(f"  noted {times} times: {text}")


if __name__ == "__main__":
    main()
