"""Silos that train on Fashion-MNIST with Opacus: κ of their canary records, and accuracy.

    python simulations/studies/silo_training.py [--seeds 20] [--rounds 8]

It needs the files of Fashion-MNIST (Debian: dataset-fashion-mnist). Three silos of 5,000, 8,000 and
15,000 records train a network of 26,213 parameters, with ``make_private`` anew in every round, and
the server averages by records. Each seed trains twice, with canaries and without, from the same
model. For each silo and adversary it prints κ on average with its standard error, which is 1 where
canaries are remembered as they were added, and ε; then the paired difference in accuracy.
"""

import argparse
import contextlib
import copy
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine

from fl_epe.auditing import FederationFacts, SiloAnswer
from fl_epe.silos import audit_records, final_answer
from simulations.others.images import read_images

DELTA = 1e-5
SIZES = (5000, 8000, 15_000)
BATCH = 64

Data = tuple[torch.Tensor, torch.Tensor]


def network() -> torch.nn.Module:
    """Of 26,213 parameters."""
    layers = torch.nn.Linear(784, 33), torch.nn.Tanh(), torch.nn.Linear(33, 10)
    return torch.nn.Sequential(*layers)


def local_model(
    start: torch.nn.Module, silo: Data, where: dict[str, Any] | None
) -> torch.nn.Module:
    """A silo's model after an epoch; audited if there is ``where`` to keep the audit."""
    model = copy.deepcopy(start)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(*silo), batch_size=BATCH
    )
    private, optimizer, batches = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=loader,
        noise_multiplier=0.8,
        max_grad_norm=1.0,
    )
    audit = (
        contextlib.nullcontext()
        if where is None
        else audit_records(where, optimizer, delta=DELTA, silos=len(SIZES))
    )
    with audit:
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(private(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model


def federation(
    silos: Sequence[Data], rounds: int, seed: int, *, audited: bool
) -> tuple[torch.nn.Module, list[SiloAnswer]]:
    """The last model, and what the silos say."""
    torch.manual_seed(seed)
    model = network()
    places: list[dict[str, Any]] = [{} for _ in silos]
    weights = np.array([len(labels) for _, labels in silos], np.float64)
    weights /= weights.sum()
    uploads = [np.zeros(len(silos)) for _ in range(rounds)]
    for energies in uploads:
        start = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        total = torch.zeros_like(start)
        for i, (silo, place) in enumerate(zip(silos, places, strict=True)):
            trained = local_model(model, silo, place if audited else None)
            update = (
                torch.nn.utils.parameters_to_vector(
                    trained.parameters()
                ).detach()
                - start
            )
            total += weights[i] * update
            energies[i] = (weights[i] * float(update.norm())) ** 2
        torch.nn.utils.vector_to_parameters(start + total, model.parameters())
    if not audited:
        return model, []
    all_rounds = tuple(range(1, rounds + 1))
    results = []
    for i, place in enumerate(places):
        remaining = [np.delete(energies, i) for energies in uploads]
        other_shares = tuple(
            float(1 - energies_of.max() / energies_of.sum())
            for energies_of in remaining
        )
        facts = FederationFacts(rounds, all_rounds, len(silos), other_shares)
        results.append(final_answer(place, list(model.parameters()), facts))
    return model, results


def accuracy(model: torch.nn.Module, data: Data) -> float:
    """Share of the images that are told right."""
    with torch.no_grad():
        return float((model(data[0]).argmax(1) == data[1]).float().mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seeds", type=int, default=20, help="federations, each with its pair"
    )
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first seed"
    )
    parser.add_argument(
        "--rounds", type=int, default=8, help="of each federation"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    images = read_images("fashion-mnist")
    data = (
        torch.from_numpy(images.inputs).float(),
        torch.from_numpy(images.labels),
    )
    held_out = (
        torch.from_numpy(images.test_inputs).float(),
        torch.from_numpy(images.test_labels),
    )
    ends = np.cumsum(SIZES)
    silos = [
        (data[0][e - n : e], data[1][e - n : e])
        for n, e in zip(SIZES, ends, strict=True)
    ]
    answers, differences = [], []
    for seed in range(options.first, options.first + options.seeds):
        model, results = federation(silos, options.rounds, seed, audited=True)
        plain, _ = federation(silos, options.rounds, seed, audited=False)
        with_canaries, without = (
            accuracy(model, held_out),
            accuracy(plain, held_out),
        )
        differences.append(with_canaries - without)
        answers.append(results)
        each = [
            [line.scale and round(line.scale, 3) for line in one.lines]
            for one in results
        ]
        print(seed, f"{with_canaries:.4f} {without:.4f}", each, flush=True)
        print(
            *(f"  {one.silo} {one.faults} {one.notes}" for one in results),
            flush=True,
        )
    print(
        "records  adversary      κ      ±       ε   proved  theory  limit  reasons"
    )
    for i, size in enumerate(SIZES):
        for j, line in enumerate(answers[0][i].lines):
            lines = [results[i].lines[j] for results in answers]
            measured = [one for one in lines if one.epsilon is not None]
            reasons = {one.reason for one in lines if one.reason}
            scales = np.array([one.scale for one in measured])
            error = (
                scales.std(ddof=1) / np.sqrt(len(scales))
                if len(scales) > 1
                else np.nan
            )
            print(
                f"{size:7,}  {line.adversary:9}  {scales.mean():5.3f}  {error:5.3f}"
                f"  {np.mean([one.epsilon for one in measured]):6.3f}"
                f"  {np.mean([one.proved or 0 for one in measured]):7.3f}  {line.theory:6.3f}"
                f"  {np.mean([one.linear_limit for one in measured]):5.3f}  {reasons or ''}"
            )
    mean, error = (
        np.mean(differences),
        np.std(differences, ddof=1) / np.sqrt(len(differences)),
    )
    print(
        f"difference in accuracy: {100 * mean:.2f} ± {100 * error:.2f} points"
    )


if __name__ == "__main__":
    main()
