"""A hospital: one epoch of DP-SGD a round with Opacus, in the loop of NVIDIA FLARE's client API."""

import argparse

import nvflare.client as flare
import torch
from opacus import PrivacyEngine
from three_hospitals.task import Net, hospital_records
from torch.utils.data import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser(description="A hospital that trains by DP-SGD.")
    parser.add_argument("--learning-rate", type=float, default=0.2)
    parser.add_argument("--noise-multiplier", type=float, default=2.0)
    options = parser.parse_args()

    flare.init()
    site = flare.get_site_name()
    records = hospital_records(int(site.removeprefix("site-")) - 1)
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        net = Net()
        net.load_state_dict({name: torch.as_tensor(p) for name, p in received.params.items()})
        model, optimizer, loader = PrivacyEngine().make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=options.learning_rate),
            data_loader=DataLoader(records, batch_size=30),
            noise_multiplier=options.noise_multiplier,
            max_grad_norm=1.0,
        )
        for measurements, diagnoses in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(measurements), diagnoses)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        flare.send(
            flare.FLModel(
                params=net.state_dict(), meta={"NUM_STEPS_CURRENT_ROUND": len(records)}
            )
        )


if __name__ == "__main__":
    main()
