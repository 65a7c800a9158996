"""DP-SGD audited in one run on real digits: ε beside theory, accuracy beside that without."""

from __future__ import annotations

import dataclasses

import numpy as np

from fl_epe.accounting import gaussian_epsilon, poisson_epsilon
from fl_epe.audits.images import CLASSES, Images, read_images
from fl_epe.audits.settings import AuditSettings
from fl_epe.audits.two_layer import Floats, TwoLayer
from fl_epe.dp_sgd import PlainDPSGD, audit_dp_sgd
from fl_epe.reporting import AuditResult, AuditTable
from fl_epe.seeding import generator

_NAME = "dp-sgd"
_NOISE = (0.5, 1.0, 2.0)
_HIDDEN, _HIDDEN_QUICK, _BATCH, _RATE = 32, 8, 64, 0.5
_STEPS, _SAMPLED_STEPS, _SAMPLED_QUICK = 20, 100, 10
_COLUMNS = ("noise multiplier", "canaries", "ε by theory", "ε", "from", "to", "accuracy", "without")


@dataclasses.dataclass(frozen=True, eq=False)
class _Training:
    """DP-SGD of a network of two layers, with and without an audit around it."""

    images: Images
    network: TwoLayer
    noise: float
    steps: int
    seed: int

    def optimizer(self) -> PlainDPSGD:
        return PlainDPSGD(
            self.network.initial(self.seed),
            learning_rate=_RATE,
            noise_multiplier=self.noise,
            max_grad_norm=1.0,
            expected_batch_size=_BATCH,
            seed=self.seed,
        )

    @property
    def sampling_rate(self) -> float:
        return _BATCH / len(self.images.labels)

    def train(self, optimizer: PlainDPSGD) -> None:
        """Batches by Poisson sampling."""
        rng = generator(self.seed, 1)
        for _ in range(self.steps):
            drawn = rng.random(len(self.images.labels)) < self.sampling_rate
            inputs, labels = self.images.inputs[drawn], self.images.labels[drawn]
            optimizer.step(_rows(self.network, optimizer.theta, inputs, labels))

    def accuracy(self, optimizer: PlainDPSGD) -> float:
        images = self.images
        return self.network.accuracy(optimizer.theta, images.test_inputs, images.test_labels)


def audit(settings: AuditSettings) -> AuditResult:
    """Three noise multipliers; ε more than twice its interval's half above theory fails."""
    canaries = settings.count(1000, 100)
    images = read_images("digits")
    hidden, sampled = (
        (_HIDDEN_QUICK, _SAMPLED_QUICK) if settings.quick else (_HIDDEN, _SAMPLED_STEPS)
    )
    network = TwoLayer(images.inputs.shape[1], hidden, CLASSES)
    rows: list[tuple[str | float, ...]] = []
    passed = True
    for noise in _NOISE[1:2] if settings.quick else _NOISE:
        for by_coins in (False, True):
            steps = sampled if by_coins else _STEPS
            training = _Training(images, network, noise, steps, settings.seed)
            row, right = _audited(training, canaries, settings, by_coins)
            rows.append(row)
            passed = passed and right
    nearest = [abs(float(row[3]) / float(row[2]) - 1) for row in rows if row[1] == _kind(False)]
    finding = (
        f"Of DP-SGD in one run with {canaries:,} canaries, ε for who sees every step is within "
        f"{max(nearest):.1%} of what theory promises."
    )
    table = AuditTable(_COLUMNS, rows)
    notes = (
        f"PlainDPSGD on digits, {network.dim:,} parameters, batches of about {_BATCH} examples by "
        "Poisson sampling. `audit_dp_sgd` goes around an Opacus optimizer in the same way "
        "(simulations/apps/opacus_audit.py).",
        f"In every step: {_STEPS} steps, and an adversary who knows that. By coins: each canary is "
        f"in a step as often as an example, in {sampled} steps, and the adversary does not "
        "know in which. Either knows the gradients of all real examples. Adjacency: add-or-remove.",
        "'from' and 'to' are the interval of 95%. Canaries are more than a batch's examples here "
        "where they take part in every step, which costs accuracy.",
    )
    return AuditResult(_NAME, finding, [table], notes, (), settings.to_dict(), passed)


def _kind(by_coins: bool) -> str:
    return "by coins, steps unknown" if by_coins else "in every step"


def _audited(
    training: _Training, canaries: int, settings: AuditSettings, by_coins: bool
) -> tuple[tuple[str | float, ...], bool]:
    """A row of the table, and whether theory is not disproved."""
    plain, optimizer = training.optimizer(), training.optimizer()
    training.train(plain)
    steps = training.steps
    if by_coins:
        how: dict[str, float] = {"sample_rate": training.sampling_rate}
        rate = training.sampling_rate
        theory = poisson_epsilon(training.noise, rate, steps, settings.delta)
    else:
        how = {"steps": steps, "participations": steps}
        theory = gaussian_epsilon(training.noise, settings.delta, steps)
    audit = audit_dp_sgd(
        optimizer,
        num_canaries=canaries,
        delta=settings.delta,
        seed=settings.seed,
        **how,  # type: ignore[arg-type]
    )
    with audit:
        training.train(optimizer)
    found = audit.epsilon(statistic="likelihood-ratio") if by_coins else audit.epsilon()
    row = (
        training.noise,
        _kind(by_coins),
        theory,
        found.epsilon,
        found.low,
        found.high,
        training.accuracy(optimizer),
        training.accuracy(plain),
    )
    return row, 2 * found.low - found.epsilon <= theory


def _rows(network: TwoLayer, model: Floats, inputs: Floats, labels: np.ndarray) -> Floats:
    """The gradient of each example, shape (n, dim)."""
    found = network.gradients(model, inputs, labels)
    first = found.through[:, :, None] * found.inputs[:, None, :]
    second = found.back[:, :, None] * found.hidden[:, None, :]
    parts = (first, found.through, second, found.back)
    return np.concatenate([part.reshape(len(labels), -1) for part in parts], axis=1)
