"""An audit of Opacus in three lines, on scikit-learn's handwritten digits. Copy it to begin.

    python simulations/apps/opacus_audit.py                 # ten epochs: half a minute
    python simulations/apps/opacus_audit.py --output audit  # also record.npz and report.html

The three lines are marked with "audit". Canaries are drawn as Poisson sampling draws examples, and
are a tenth of a batch; noise, accounting and torch's random numbers stay as they are.
"""

import argparse
import warnings

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits

from fl_epe import audit_dp_sgd  # audit


def main(argv: list[str] | None = None) -> str:
    parser = argparse.ArgumentParser(description="An audit of Opacus on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", help="folder for the record and the report")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")  # Opacus: noise of this kind is not for production

    images, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    images = images.float() / 16
    train = torch.utils.data.TensorDataset(images[:1500], labels[:1500])
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=torch.utils.data.DataLoader(train, batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )

    with audit_dp_sgd(optimizer, delta=1e-5) as audit:  # audit
        for _ in range(options.epochs):
            for batch, targets in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(batch), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    report = audit.report(options.output)  # audit
    right = model(images[1500:]).argmax(1) == labels[1500:]
    return f"{report}\nAccuracy on 297 held-out digits: {right.float().mean():.1%}"


if __name__ == "__main__":
    print(main())
