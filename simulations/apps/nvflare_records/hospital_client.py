"""A hospital: one epoch of DP-SGD a round with Opacus, in the loop of NVIDIA FLARE's client API.

The audit is the import, the ``with`` around the training loop, and `final_answer` where the last
model comes. It is kept in a folder of the hospital, and its answer stays there: this server is told
nothing of it.
"""

import argparse
from pathlib import Path

import nvflare.client as flare
import torch
from opacus import PrivacyEngine
from three_hospitals.task import HOSPITALS, Net, hospital_records, public_accuracy
from torch.utils.data import DataLoader

from fl_epe.reporting import silos_text
from fl_epe.silos import audit_records, final_answer


def main() -> None:
    parser = argparse.ArgumentParser(description="A hospital that trains by DP-SGD.")
    parser.add_argument("--learning-rate", type=float, default=0.2)
    parser.add_argument("--noise-multiplier", type=float, default=2.0)
    parser.add_argument("--audits", type=Path, default=Path("runs/nvflare-audits"))
    options = parser.parse_args()

    flare.init()
    name = flare.get_site_name()
    records, folder = hospital_records(name), options.audits / name
    engine = PrivacyEngine()  # one for all rounds, so that its accountant counts all steps
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        net = Net()
        net.load_state_dict({name: torch.as_tensor(p) for name, p in received.params.items()})

        if flare.is_evaluate():  # the last model
            answer = final_answer(folder, received.params)
            print(silos_text([answer]), flush=True)
            flare.send(flare.FLModel(metrics={"accuracy": public_accuracy(net)[1]}))
            continue

        model, optimizer, loader = engine.make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=options.learning_rate),
            data_loader=DataLoader(records, batch_size=30),
            noise_multiplier=options.noise_multiplier,
            max_grad_norm=1.0,
        )
        with audit_records(folder, optimizer, delta=1e-5, silo=name, silos=len(HOSPITALS)) as audit:
            for measurements, diagnoses in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(measurements), diagnoses)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        audit.sent(net.state_dict())

        weight = {"NUM_STEPS_CURRENT_ROUND": len(records)}
        flare.send(flare.FLModel(params=net.state_dict(), meta=weight))


if __name__ == "__main__":
    main()
