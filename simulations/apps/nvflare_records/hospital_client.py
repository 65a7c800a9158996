"""A hospital: one epoch of DP-SGD a round with Opacus, in the loop of NVIDIA FLARE's client API.

The audit is a ``with`` around the training loop, a line after it, and `final_answer` where the
last model comes. It is kept in a folder of the hospital, and so is its answer: the server is told
nothing of it.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nvflare.client as flare
import torch
from opacus import PrivacyEngine
from three_hospitals.task import Net, hospital_records, public_accuracy
from torch.utils.data import DataLoader

from fl_epe.auditing import FederationFacts
from fl_epe.reporting import silos_text
from fl_epe.silos import audit_records, final_answer

DELTA = 1e-5


def federation(hospital: str, rounds: Sequence[int], meta: Mapping[str, Any]) -> FederationFacts:
    """What a hospital cannot see by itself, for its partner's line.

    The server tells every hospital the weights of all. With one batch size and one epoch a round
    for all, the noise of a hospital in an average has a variance in proportion to its weight³. The
    worst partner is the hospital with the largest one.

    Args:
        hospital: its name.
        rounds: in which it trained, from 1.
        meta: of the message with the last model.
    """
    sites = meta["metrics_aggregation_info"]["site_weights"]
    noise = [site["weight"] ** 3 for site in sites if site["name"] != hospital]
    left = 1 - max(noise) / sum(noise)
    return FederationFacts(
        rounds=int(meta["current_round"]) + 1,
        upload_rounds=tuple(rounds),
        silos=len(sites),
        remaining_energies=(left,) * len(rounds),
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A hospital that trains by DP-SGD.")
    parser.add_argument("--learning-rate", type=float, default=0.2)
    parser.add_argument("--noise-multiplier", type=float, default=2.0)
    parser.add_argument("--audits", type=Path, required=True, help="a folder for its audit in it")
    options = parser.parse_args(argv)

    flare.init()
    hospital = flare.get_site_name()
    records, folder = hospital_records(hospital), options.audits / hospital
    engine = PrivacyEngine()  # one for all rounds, so that its accountant counts all steps
    rounds: list[int] = []
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        net = Net()
        net.load_state_dict({key: torch.as_tensor(value) for key, value in received.params.items()})

        if flare.is_evaluate():  # the last model
            facts = federation(hospital, rounds, received.meta)
            answer = final_answer(folder, received.params, facts)
            (folder / "answer.txt").write_text(silos_text([answer]), "utf-8")
            flare.send(flare.FLModel(metrics={"accuracy": public_accuracy(net)[1]}))
            continue

        model, optimizer, loader = engine.make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=options.learning_rate),
            data_loader=DataLoader(records, batch_size=30),
            noise_multiplier=options.noise_multiplier,
            max_grad_norm=1.0,
        )
        with audit_records(folder, optimizer, delta=DELTA, silo=hospital) as audit:
            for measurements, diagnoses in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(measurements), diagnoses)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        audit.sent(net.state_dict())

        rounds.append(received.current_round + 1)
        weight = {"NUM_STEPS_CURRENT_ROUND": len(records)}
        flare.send(flare.FLModel(params=net.state_dict(), meta=weight))


if __name__ == "__main__":
    main()
