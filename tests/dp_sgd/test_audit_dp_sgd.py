import logging
import math
import re

import numpy as np
import pytest
import torch
from opacus import GradSampleModule, PrivacyEngine
from opacus.optimizers import (
    AdaClipDPOptimizer,
    DPOptimizer,
    DPPerLayerOptimizer,
)
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager

from fl_epe import (
    AuditRecord,
    RunAuditor,
    assert_private,
    audit_dp_sgd,
    epsilon_from_record,
    find_evidence,
)
from fl_epe.accounting import gaussian_epsilon, poisson_epsilon
from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    NotMeasured,
    answers,
    ladder_fit,
    scores_for_claim,
    seen_by,
)
from fl_epe.cli import main
from fl_epe.dp_sgd import DPSGDAudit, PlainDPSGD, optimizers, seen_steps
from fl_epe.dp_sgd.optimizers import Steps
from fl_epe.dp_sgd.step_checks import StepFindings
from fl_epe.reporting import as_text, summarize

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning"
)

BATCH, STEPS = 16, 12
ADAPTIVE = {
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 2.0,
}


def examples(count=64):
    draw = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 4, (count,), generator=draw)
    return torch.randn(count, 20, generator=draw) + labels[:, None] / 2, labels


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 60), torch.nn.Tanh(), torch.nn.Linear(60, 4)
    )


def private(
    kind=DPOptimizer, inner=torch.optim.SGD, z=1.0, more=None, **options
):
    model = GradSampleModule(network())
    optimizer = kind(
        inner(model.parameters(), **({"lr": 0.1} | options)),
        noise_multiplier=z,
        max_grad_norm=1.0,
        expected_batch_size=BATCH,
        generator=torch.Generator().manual_seed(5**20),
        **(more or {}),
    )
    return model, optimizer


def train(model, optimizer, steps=STEPS, after=lambda: None):
    inputs, labels = examples()
    for step in range(steps):
        here = slice(step * BATCH % 64, step * BATCH % 64 + BATCH)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(
            model(inputs[here]), labels[here]
        ).backward()
        optimizer.step()
        after()
    return weights(model)


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def audited(optimizer, **options):
    settings = {
        "num_canaries": 200,
        "delta": 1e-5,
        "sample_rate": 1.0,
        "seed": 7,
    }
    return audit_dp_sgd(optimizer, **(settings | options))


def engine(grad_sample_mode="hooks", **options):
    torch.manual_seed(1)
    model = network()
    data = torch.utils.data.TensorDataset(*examples())
    criterion = torch.nn.CrossEntropyLoss()
    found = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=BATCH),
        criterion=criterion,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=grad_sample_mode,
        noise_generator=torch.Generator().manual_seed(5),
        **options,
    )
    if len(found) == 3:
        model, optimizer, loader = found
    else:
        model, optimizer, criterion, loader = found
    loader.batch_sampler.generator = torch.Generator().manual_seed(6)
    return model, optimizer, criterion, loader


def epochs(model, optimizer, criterion, loader, count=2):
    for _ in range(count):
        for inputs, labels in loader:
            optimizer.zero_grad()
            criterion(model(inputs), labels).backward()
            optimizer.step()
    return weights(model)


@pytest.mark.slow
@pytest.mark.parametrize("z", [0.5, 1.0, 2.0])
def test_epsilon_is_that_of_theory(z):
    model, optimizer = private(z=z)
    with audited(optimizer) as audit:
        train(model, optimizer)
    found = audit.epsilon(confidence=0.999)
    assert found.low < gaussian_epsilon(z, 1e-5, STEPS) < found.high
    assert found.high / found.low < 1.8


@pytest.mark.slow
@pytest.mark.parametrize("participations", [1, 3])
def test_canaries_of_a_fixed_number_of_steps(participations):
    model, optimizer = private(z=0.5)
    with audited(
        optimizer,
        num_canaries=400,
        sample_rate=None,
        steps=STEPS,
        participations=participations,
    ) as audit:
        train(model, optimizer, STEPS + 2)
    record = audit.record()
    assert (record.presence.sum(axis=0) == participations).all()
    assert not record.presence[
        STEPS:
    ].any()  # the run went on for longer than was planned
    found = audit.epsilon(confidence=0.999)
    assert found.low < gaussian_epsilon(0.5, 1e-5, participations) < found.high


@pytest.mark.slow
def test_unknown_rounds_of_poisson_sampling():
    model, optimizer = private(z=0.7)
    with audited(optimizer, num_canaries=600, sample_rate=0.25) as audit:
        train(model, optimizer, 40)
    record = audit.record()
    assert record.mechanism.participation.hidden
    assert record.mechanism.canary_participations == 10
    found = audit.epsilon(confidence=0.999)
    assert found.low < poisson_epsilon(0.7, 0.25, 40, 1e-5) < found.high
    assert found.epsilon < audit.epsilon(adversary=EVERY_ROUND).epsilon


@pytest.mark.slow
def test_the_plain_step():
    optimizer = PlainDPSGD(
        np.zeros(3000),
        learning_rate=0.1,
        noise_multiplier=1.0,
        max_grad_norm=2.0,
        expected_batch_size=8,
        seed=2,
    )
    gradients = np.random.default_rng(0).normal(size=(8, 3000))
    with audited(optimizer) as audit:
        for _ in range(STEPS):
            optimizer.step(gradients)
    found = audit.epsilon(confidence=0.999)
    assert found.low < gaussian_epsilon(1.0, 1e-5, STEPS) < found.high
    assert find_evidence(audit, 0.1, 1e-5).violated
    scale = ladder_fit(seen_by(audit.record()), confidence=0.999)
    assert scale.low < 1 < scale.high


def test_the_plain_step_is_what_it_says():
    optimizer = PlainDPSGD(
        np.ones(2),
        learning_rate=0.5,
        noise_multiplier=0.0,
        max_grad_norm=1.0,
        expected_batch_size=4,
    )
    found = optimizer.step(
        np.array([[3.0, 4.0], [0.0, 0.5]])
    )  # the first is clipped
    assert found == pytest.approx([1 - 0.5 * 0.6 / 4, 1 - 0.5 * 1.3 / 4])
    with pytest.raises(
        ValueError, match=r"gradients.shape=\(2,\) to be \(batch, 2\)"
    ):
        optimizer.step(np.ones(2))
    with pytest.raises(ValueError, match="noise_multiplier=-1"):
        PlainDPSGD(
            np.ones(2),
            learning_rate=1,
            noise_multiplier=-1,
            max_grad_norm=1,
            expected_batch_size=1,
        )


@pytest.mark.slow
def test_empty_batches_do_not_switch_the_check_of_batch_sizes_off():
    optimizer = PlainDPSGD(
        np.zeros(50),
        learning_rate=0.1,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=2,
    )
    rng = np.random.default_rng(0)
    with audited(optimizer, sample_rate=2 / 500, num_canaries=100) as audit:
        for size in [0, *rng.binomial(500, 4 / 500, 150)]:
            optimizer.step(rng.normal(size=(size, 50)))
    assert (
        "where a sampling rate of 0.004 makes one expect 2"
        in audit.findings.faults[0]
    )
    assert audit.findings.unseen == ()


@pytest.mark.parametrize("when", ["before", "inside"])
@pytest.mark.filterwarnings("error")
def test_a_scheduler_may_be_made_before_or_inside(when):
    model, optimizer = private()
    rates = None
    if when == "before":
        rates = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with audited(optimizer) as audit:
        rates = rates or torch.optim.lr_scheduler.StepLR(
            optimizer, 1, gamma=0.5
        )
        train(model, optimizer, 3, rates.step)
    train(model, optimizer, 1, rates.step)
    assert optimizer.param_groups[0]["lr"] == 0.1 / 2**4
    assert (audit.record().rounds, audit._seen.movement.steps) == (3, 3)
    assert (audit._seen.movement.unexplained, audit._seen.movement.changes) == (
        0,
        0,
    )


class KeepsItsOwn(torch.optim.SGD):
    """Cannot be copied as torch copies optimizers: what it needs is no state."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.mine = 1

    def step(self, closure=None):
        assert self.mine
        return super().step(closure)


def test_an_optimizer_that_cannot_be_replayed_is_not_accused():
    model, optimizer = private(inner=KeepsItsOwn)
    with audited(optimizer) as audit:
        train(model, optimizer)
    (unseen,) = [
        text for text in audit.findings.unseen if "moves the model" in text
    ]
    assert unseen.startswith(
        "what moves the model in 12 of 12 steps: a step cannot be replayed (AttributeError:"
    )
    assert "without noise" not in "; ".join(audit.findings.faults)


def test_weights_from_elsewhere_are_told():
    model, optimizer = private()
    with audited(optimizer) as audit:
        train(model, optimizer, 5)
        with torch.no_grad():
            next(iter(model.parameters())).mul_(0.5)  # as a server's model
        train(model, optimizer, 5)
    assert (
        "what changed the model between steps, 1 time" in audit.findings.unseen
    )
    assert audit._seen.movement.unexplained == 0


def test_replays_leave_random_numbers_and_other_parameters_alone():
    class Draws(torch.optim.SGD):
        """Adds noise of its own to each step."""

        def step(self, closure=None):
            loss = super().step(closure)
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter.add_(torch.randn_like(parameter), alpha=1e-3)
            return loss

    model, optimizer = private(inner=Draws)
    plain = train(model, optimizer)
    numbers = torch.get_rng_state()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DPSGDAudit, "_canary_sum", nothing)
        model, optimizer = private(inner=Draws)
        with audited(optimizer) as audit:
            assert torch.equal(plain, train(model, optimizer))
    assert torch.equal(numbers, torch.get_rng_state())
    assert (
        audit._seen.movement.unexplained == 0
    )  # the replay draws the same numbers


def nothing(self, cohort, clip_norm):
    return np.zeros(self._auditor.canaries.dim, np.float32)


OPTIMIZERS = {
    "flat": {},
    "momentum": {"momentum": 0.9},
    "adam": {"inner": torch.optim.Adam},
    "adaptive": {"kind": AdaClipDPOptimizer, "more": ADAPTIVE},
    "sum": {"more": {"loss_reduction": "sum"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_without_the_canaries_gradients_training_is_the_same_bit_for_bit(
    name, monkeypatch
):
    monkeypatch.setattr(DPSGDAudit, "_canary_sum", nothing)
    model, optimizer = private(**OPTIMIZERS[name])
    plain, numbers = train(model, optimizer), torch.get_rng_state()
    model, optimizer = private(**OPTIMIZERS[name])
    with audited(optimizer) as audit:
        same = train(model, optimizer)
    assert audit.record().rounds == STEPS
    assert torch.equal(plain, same)
    assert torch.equal(numbers, torch.get_rng_state())


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_the_engine_s_training_is_the_same_bit_for_bit(mode, monkeypatch):
    monkeypatch.setattr(DPSGDAudit, "_canary_sum", nothing)
    plain = epochs(*engine(mode))
    parts = engine(mode)
    with audit_dp_sgd(parts[1], num_canaries=40, delta=1e-5) as audit:
        assert torch.equal(plain, epochs(*parts))
    record = audit.record()
    assert (
        record.mechanism.canary_participations == 8 * 0.25
    )  # the engine's own sampling rate
    assert record.mechanism.participation.hidden


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_canaries_are_all_that_is_different(mode):
    plain = epochs(*engine(mode))
    parts = engine(mode)
    start = weights(parts[0])
    with audited(
        parts[1], num_canaries=20, sample_rate=1.0, unobserved=0
    ) as audit:
        changed = epochs(*parts)
    record = audit.record()
    shift = (
        np.asarray(plain - changed, np.float64) / 0.1 * BATCH / record.rounds
    )
    total = -audit._auditor.canaries.combine(np.ones((1, 20)))[
        0
    ]  # less the gradients they change
    assert np.dot(shift, total) / np.dot(total, total) == pytest.approx(
        1, abs=0.1
    )
    assert not torch.equal(start, changed)


def test_one_step_moves_by_exactly_the_canaries():
    model, optimizer = private()
    plain = train(model, optimizer, 1)
    model, optimizer = private()
    with audited(optimizer) as audit:
        changed = train(model, optimizer, 1)
    total = audit._auditor.canaries.combine(
        np.ones((1, 200)), numbers=range(200)
    )[0]
    assert np.allclose(
        (changed - plain).numpy(), 0.1 * total / BATCH, atol=1e-6
    )


@pytest.mark.slow
def test_virtual_steps_are_one_step():
    parts = engine()
    model, optimizer, criterion, loader = parts
    with (
        audited(optimizer, sample_rate=None) as audit,
        BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=5, optimizer=optimizer
        ) as small,
    ):
        for _ in range(5):
            epochs(model, optimizer, criterion, small, 1)
    assert audit.record().rounds == 5 * len(loader)
    found = audit.epsilon(confidence=0.999)
    assert found.low < poisson_epsilon(1.0, 0.25, 20, 1e-5) < found.high


class BrokenError(Exception):
    pass


def breaks(*args, **options):
    raise BrokenError("on purpose")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["_canary_sum", "_score", "observe"])
def test_no_exception_of_the_audit_ends_training(where, monkeypatch, caplog):
    model, optimizer = private()
    audit = audited(optimizer)

    def break_it():
        if audit._auditor.rounds == 3:
            owner = RunAuditor if where == "observe" else DPSGDAudit
            monkeypatch.setattr(owner, where, breaks)

    with caplog.at_level(logging.WARNING, "fl_epe.dp_sgd"), audit:
        caplog.clear()
        assert torch.isfinite(train(model, optimizer, after=break_it)).all()
    told = [line for line in caplog.messages if "on purpose" in line]
    assert len(told) == 1
    monkeypatch.undo()
    record = audit.record()
    assert record.rounds == 3
    assert "ε" in audit.report()
    assert "goes on without the audit" in record.provenance.faults[0]
    assert (
        record.mechanism.server.name != "sgd"
    )  # the model has taken further steps


def test_after_a_failure_training_is_that_without_the_audit(monkeypatch):
    model, optimizer = private()
    plain = train(model, optimizer)
    monkeypatch.setattr(Steps, "join", breaks)
    model, optimizer = private()
    with audited(optimizer) as audit:
        assert torch.equal(plain, train(model, optimizer))
    assert audit.record().rounds == 0
    assert "not measured" in audit.report()
    with pytest.raises(ValueError, match="on purpose"):
        audit.epsilon()


def test_the_optimizer_is_given_back():
    model, optimizer = private()
    outer, inner = audited(optimizer), audited(optimizer)
    with outer:
        with pytest.raises(BrokenError), inner:
            raise BrokenError
        train(model, optimizer, 1)
        assert inner.record().rounds == 0
    assert outer.record().rounds == 1
    assert "add_noise" not in vars(optimizer)
    train(model, optimizer, 2)
    assert outer.record().rounds == 1
    with pytest.raises(ValueError, match="has audited a run"), outer:
        pass


def test_an_error_of_the_step_takes_canaries_out_again(monkeypatch):
    model, optimizer = private()
    monkeypatch.setattr(optimizer, "add_noise", breaks)
    with audited(optimizer) as audit, pytest.raises(BrokenError):
        train(model, optimizer, 1)
    found = torch.cat([p.summed_grad.reshape(-1) for p in optimizer.params])
    assert optimizer.add_noise is breaks
    model, optimizer = private()
    monkeypatch.setattr(optimizer, "add_noise", breaks)
    with pytest.raises(BrokenError):
        train(model, optimizer, 1)
    same = torch.cat([p.summed_grad.reshape(-1) for p in optimizer.params])
    assert torch.equal(found, same)
    assert audit.record().rounds == 0


def test_a_step_that_is_not_finite_is_lost():
    model, optimizer = private()
    with audited(optimizer) as audit:
        train(model, optimizer, 4)
        for group in optimizer.param_groups:
            group["lr"] = math.inf
        train(model, optimizer, 2)
    record = audit.record()
    assert record.rounds == 6
    assert record.presence.any(axis=1).tolist() == [True] * 5 + [False]
    assert record.clients.absent.tolist() == [0] * 5 + [200]
    assert sum(record.provenance.fault_counts.values()) == 1
    assert math.isfinite(audit.epsilon().epsilon)


def test_schedules_of_the_noise_and_of_the_learning_rate_go_on():
    model, optimizer = private(lr=1.0)
    rate = torch.optim.lr_scheduler.StepLR(
        optimizer.original_optimizer, 1, gamma=0.5
    )
    noise = ExponentialNoise(optimizer, gamma=0.9)
    with audited(optimizer) as audit:
        train(
            model, optimizer, 3, lambda: [each.step() for each in (rate, noise)]
        )
    record = audit.record()
    assert record.mechanism.server.learning_rates.tolist() == [1, 0.5, 0.25]
    assert (
        record.mechanism.noise_multiplier is None
    )  # no single one: no ε is claimed by theory
    assert audit.epsilon().epsilon > 0
    model, optimizer = private(lr=1.0)
    rate = torch.optim.lr_scheduler.StepLR(
        optimizer.original_optimizer, 1, gamma=0.5
    )
    with audited(optimizer) as audit:
        train(model, optimizer, 12, rate.step)
    fit = ladder_fit(seen_by(audit.record()), confidence=0.999)
    assert fit.low < 1 < fit.high


@pytest.mark.parametrize("name", ["momentum", "sum"])
def test_the_final_model_holds_what_is_expected(name):
    options = {"flat": {}, **OPTIMIZERS}[name]
    rate = 0.01 if name == "sum" else 0.1
    model, optimizer = private(lr=rate, **options)
    with audited(optimizer) as audit:
        train(model, optimizer)
    fit = ladder_fit(seen_by(audit.record()), confidence=0.999)
    assert fit.low < 1 < fit.high


def test_adaptive_clipping_has_the_noise_of_the_sum():
    model, optimizer = private(AdaClipDPOptimizer, more=ADAPTIVE)
    with audited(optimizer) as audit:
        train(model, optimizer)
    mechanism = audit.record().mechanism
    assert mechanism.noise_multiplier == 1
    assert mechanism.sum_noise_multiplier == pytest.approx((1 - 1 / 16) ** -0.5)
    assert len(set(mechanism.clip_norms.tolist())) > 1
    found = audit.epsilon(confidence=0.999)
    assert (
        found.low
        < gaussian_epsilon(mechanism.sum_noise_multiplier, 1e-5, STEPS)
        < found.high
    )


def test_an_optimizer_whose_steps_cannot_be_added_up():
    model, optimizer = private(inner=torch.optim.Adam, lr=0.01)
    with audited(optimizer) as audit:
        train(model, optimizer)
    record = audit.record()
    assert record.mechanism.server.name == "DPOptimizer around Adam"
    assert audit.epsilon(adversary=FINAL_MODEL).epsilon >= 0
    found = audit.epsilon(confidence=0.999)
    assert found.low < gaussian_epsilon(1.0, 1e-5, STEPS) < found.high


class TooLittleNoise(DPOptimizer):  # type: ignore[misc]
    """Its noise has a third of the deviation that it claims."""

    def add_noise(self):
        self.noise_multiplier /= 3
        super().add_noise()
        self.noise_multiplier *= 3


@pytest.mark.slow
def test_a_broken_optimizer_is_found_and_a_right_one_is_not():
    claim = gaussian_epsilon(3.0, 1e-5, STEPS)
    for kind in (DPOptimizer, TooLittleNoise):
        model, optimizer = private(kind, z=3.0)
        with audited(optimizer, num_canaries=400) as audit:
            train(model, optimizer)
        evidence = find_evidence(audit, claim, 1e-5, method="gdp")
        assert evidence.violated == (kind is TooLittleNoise)
    with pytest.raises(AssertionError):
        assert_private(audit, claim, 1e-5, method="gdp")


@pytest.mark.slow
def test_the_record_and_the_report(tmp_path, capsys):
    model, optimizer = private()
    with audited(optimizer, num_canaries=50) as audit:
        assert audit._design["share"] == 50 / BATCH
        train(model, optimizer, 4)
    text = audit.report(tmp_path, details=True)
    assert (
        "About 50.0 canaries join a step, beside an expected batch of 16 examples"
        in text
    )
    assert "whether one example took part" in " ".join(text.split())
    assert "one example" in " ".join(text.split())
    assert "every real example's gradient" in " ".join(text.split())
    loaded = AuditRecord.load(tmp_path / "record.npz")
    assert epsilon_from_record(loaded, adversary=EVERY_ROUND) == audit.epsilon()
    assert loaded.provenance.versions["opacus"]
    assert loaded.provenance.seeds == {"canary": 7}
    assert main(["report", str(tmp_path)]) == 3  # canaries are most of a step
    assert "every round" in capsys.readouterr().out
    (tmp_path / "file").write_text("")
    assert "The report is incomplete" in audit.report(tmp_path / "file")


def test_each_record_of_the_same_steps_has_the_same_bits():
    model, optimizer = private()
    with audited(optimizer, num_canaries=50) as audit:
        train(model, optimizer)
    first, second = audit.record(), audit.record()
    for name in ("final", "displacement", "means"):
        one, other = (
            getattr(record.observed, name) for record in (first, second)
        )
        np.testing.assert_array_equal(one, other)


def test_without_full_knowledge_gradients_hide_canaries():
    model, optimizer = private(z=0.1)
    with audited(optimizer, num_canaries=20, full_knowledge=False) as audit:
        train(model, optimizer)
    assert audit.record().design.also_known is None
    assert audit.epsilon().epsilon < 0.9 * gaussian_epsilon(0.1, 1e-5, STEPS)


def test_seeds():
    records = []
    for seed in (None, None, 3, 3):
        model, optimizer = private()
        with audited(optimizer, seed=seed) as audit:
            train(model, optimizer, 2)
        records.append(audit.record())
    scores = [record.observed.means for record in records]
    assert not np.array_equal(scores[0], scores[1])
    assert np.array_equal(scores[2], scores[3])
    assert records[0].provenance.seeds["canary"] > 2**64


def per_layer(optimizer):
    inner = optimizer.original_optimizer
    norms = [1.0] * len(optimizer.params)
    return DPPerLayerOptimizer(
        inner,
        noise_multiplier=1.0,
        max_grad_norm=norms,
        expected_batch_size=BATCH,
    )


def no_params(optimizer):
    for parameter in optimizer.params:
        parameter.requires_grad = False
    return optimizer


class DistributedDPOptimizer(DPOptimizer):  # type: ignore[misc]
    """By its name the one that reduces gradients over processes."""


REFUSED = {
    "per-layer": (
        per_layer,
        {},
        "one clip norm for all layers, got optimizer=DPPerLayer",
    ),
    "distributed": (
        lambda _: private(DistributedDPOptimizer)[1],
        {},
        "one process, got optimizer=DistributedDPOptimizer",
    ),
    "nothing-trained": (no_params, {}, "trainable parameters"),
    "not-private": (
        lambda o: o.original_optimizer,
        {},
        "type SGD to be an Opacus DPOptimizer",
    ),
    "no-rate": (
        lambda o: o,
        {"sample_rate": None},
        "sample_rate=… .* or steps=…",
    ),
    "both": (lambda o: o, {"steps": 5}, "steps=5 or sample_rate=1.0, not both"),
    "rate": (lambda o: o, {"sample_rate": 1.5}, "sample_rate=1.5"),
    "one-canary": (lambda o: o, {"num_canaries": 1}, "num_canaries=1 >= 2"),
    "unobserved": (lambda o: o, {"unobserved": -1}, "unobserved=-1 >= 0"),
    "delta": (lambda o: o, {"delta": 2.0}, "delta=2.0"),
    "twice": (
        lambda o: o,
        {"participations": 2},
        "steps=… with participations=2",
    ),
    "often": (
        lambda o: o,
        {"sample_rate": None, "steps": 3, "participations": 4},
        r"participations=4 .*steps=3",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_audited_is_refused_before_training(name):
    make, options, words = REFUSED[name]
    optimizer = make(private()[1])
    with pytest.raises((ValueError, TypeError), match=words):
        audited(optimizer, **options)


def test_before_training_there_is_nothing():
    audit = audited(private()[1])
    with pytest.raises(ValueError, match="around training first"):
        audit.record()
    assert "around training first" in audit.report()


def test_other_trained_parameters_than_at_the_start_stop_the_audit():
    model, optimizer = private()
    with audited(optimizer) as audit:
        train(model, optimizer, 2)
        next(iter(model.parameters())).requires_grad = False
        train(model, optimizer, 2)
    assert audit.record().rounds == 2
    assert "4 trainable tensors" in audit.faults[0]


def digits_like(
    seed=0, z=1.0, wrong=None, poisson=True, accumulate=1, clip=0.2, **options
):
    """A run of Opacus's engine with 120 steps of about 64 examples, and Opacus's own ε."""
    torch.manual_seed(seed)
    inputs = torch.randn(1500, 20)
    data = torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long())
    model, private_by = network(), PrivacyEngine()
    model, optimizer, loader = private_by.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=torch.utils.data.DataLoader(
            data, batch_size=64, shuffle=True
        ),
        noise_multiplier=z,
        max_grad_norm=clip,
        poisson_sampling=poisson,
    )
    if wrong is not None:
        wrong(optimizer)
    settings = {"num_canaries": 300, "delta": 1e-5, "seed": seed} | options
    with audit_dp_sgd(optimizer, **settings) as audit:
        for number, (images, targets) in enumerate(
            (pair for _ in range(2) for pair in loader), 1
        ):
            torch.nn.functional.cross_entropy(model(images), targets).backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return audit


def changed(name, attribute, factor):
    """Puts a method in the place of ``name`` for which ``attribute`` is another one meanwhile."""

    def wrong(optimizer):
        method = getattr(optimizer, name)

        def changes():
            before = getattr(optimizer, attribute)
            setattr(optimizer, attribute, factor * before)
            method()
            setattr(optimizer, attribute, before)

        setattr(optimizer, name, changes)

    return wrong


def repeats(optimizer):
    method = optimizer.add_noise

    def same():
        with torch.random.fork_rng():
            torch.manual_seed(5**20)  # none that is tried
            method()

    optimizer.add_noise = same


FAULTS = {
    "clip-norm-doubled": (
        {"wrong": changed("clip_and_accumulate", "max_grad_norm", 2.0)},
        "clipped gradients are up to 2 times as long as the clip norm",
    ),
    "no-clipping": (
        {"wrong": changed("clip_and_accumulate", "max_grad_norm", 1e9)},
        "times as long as the clip norm",
    ),
    "shuffled": ({"poisson": False}, "not drawn by Poisson sampling"),
    "same-noise": (
        {"wrong": repeats},
        r"rounds \d+ and \d+ have the same noise",
    ),
    "noise-removed": (
        {"wrong": changed("add_noise", "noise_multiplier", 0.0)},
        "4 of 4 without any: tensor 1, tensor 2, tensor 3 and 1 more",
    ),
    "half-of-the-noise": (
        {"wrong": changed("add_noise", "noise_multiplier", 0.5)},
        r"not as claimed \(scale\): 0\.(49|50)\d* times the claim",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.slow]
            if name in ("no-clipping", "half-of-the-noise")
            else [],
        )
        for name in FAULTS
    ],
)
def test_a_step_that_is_not_as_claimed_is_named(name):
    options, words = FAULTS[name]
    audit = digits_like(**options)
    assert re.search(words, "; ".join(audit.findings.faults))
    summary = summarize(audit.record())
    assert summary.status == (
        "not measured" if audit.findings.unbounded else "faulty"
    )
    assert re.search(words, " ".join(as_text(summary, details=True).split()))
    with pytest.raises((AssertionError, ValueError), match=words[:26]):
        assert_private(audit, 5.0, 1e-5)


@pytest.mark.slow
def test_right_steps_have_no_fault():
    audit = digits_like()
    assert audit.findings == StepFindings()
    assert audit.record().findings.noise[0] == "Noise: as claimed."
    assert {one.code for one in summarize(audit.record()).warnings} <= {"load"}


@pytest.mark.slow
@pytest.mark.parametrize("z", [0.0, 1.0])
def test_without_noise_no_epsilon_of_every_step_is_a_number(z):
    audit = digits_like(
        z=z, wrong=changed("add_noise", "noise_multiplier", 0.0)
    )
    why = "4 of 4 without any: .*" if z else "48 of 48 steps had no noise"
    for statistic in ("matched-filter", None, "maximum"):
        with pytest.raises(NotMeasured, match=f"{why}, so ε of every round"):
            audit.epsilon(statistic=statistic)
    assert "Not measured" in audit.report()
    assert bool(audit.findings.faults) == (
        z > 0
    )  # who claims no noise has no fault in that


@pytest.mark.slow
def test_accumulated_batches_multiply_the_sampling_rate():
    audit = digits_like(poisson=False, accumulate=2)
    mechanism = audit.record().mechanism
    assert mechanism.canary_participations == pytest.approx(
        24 * 2 / 24
    )  # Opacus: 24 steps of 2q
    theory = poisson_epsilon(1.0, 2 / 24, 24, 1e-5)  # what Opacus counts
    assert answers(audit.record())[1].analytical.epsilon == pytest.approx(
        theory
    )
    counts = audit._auditor._rounds["presence"].sum(axis=1).tolist()
    expected = 300 * 2 / 24
    assert abs(np.mean(counts) - expected) < 4 * math.sqrt(
        expected / len(counts)
    )


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, 1000])
def test_intervals_hold_the_theorem_for_few_and_many_canaries(count):
    theory = poisson_epsilon(0.3, 1 / 24, 48, 1e-5)
    audit = digits_like(z=0.3, num_canaries=count)
    found = audit.epsilon(confidence=0.999)
    assert found.low < theory < found.high
    assert (
        audit.record().norms.canary_sums.max() == 0
    )  # no other canary is left in the residual


@pytest.mark.slow
def test_a_claim_of_the_accountant_is_tested_at_unknown_steps():
    audit, claim = (
        digits_like(num_canaries=1000),
        poisson_epsilon(1.0, 1 / 24, 48, 1e-5),
    )
    scores = scores_for_claim(audit.record())
    # Canaries that were drawn for no step count as members, and the null is exact.
    assert len(scores.observed) == 1000
    assert scores.dim is not None
    assert audit.record().num_canaries < 1000
    evidence = assert_private(audit, claim, 1e-5)
    assert evidence.statistic == "likelihood ratios at unknown rounds"
    assert evidence.estimate == audit.epsilon(confidence=0.99)
    assert not evidence.adversary.knows_rounds
    with pytest.raises(
        ValueError,
        match="method='gdp' to be one for scores of any distribution",
    ):
        find_evidence(audit, claim, 1e-5, method="gdp")
    summary = summarize(audit.record())
    every, told = summary.answers[1], summary.answers_with_known_rounds[1]
    assert not every.adversary.knows_rounds
    assert every.estimate is not None
    assert told.estimate is not None
    assert every.analytical.epsilon is not None
    assert every.estimate.epsilon < 1.3 * every.analytical.epsilon
    assert told.estimate.epsilon > 2 * every.analytical.epsilon


@pytest.mark.slow
def test_the_number_of_canaries_is_a_tenth_of_a_batch():
    audit = audited(private()[1], num_canaries=None)
    assert audit._design["num_canaries"] == 2  # of 16 examples, and no fewer
    audit = audited(private()[1], num_canaries=None, sample_rate=0.01)
    assert audit._design["num_canaries"] == 160
    assert audit._design["share"] == pytest.approx(0.1)
    audit = audited(private()[1], num_canaries=None, sample_rate=1e-4)
    assert audit._design["num_canaries"] == 1000
    audit = audited(
        private()[1],
        num_canaries=None,
        sample_rate=None,
        steps=40,
        participations=2,
    )
    assert audit._design["num_canaries"] == 32
    assert (
        digits_like(num_canaries=None)._design["num_canaries"] == 148
    )  # of 1,500 examples


@pytest.mark.slow
def test_right_runs_are_not_convicted():
    claim = poisson_epsilon(1.0, 1 / 24, 48, 1e-5)
    for seed in range(5):
        assert not assert_private(
            digits_like(seed, num_canaries=None), claim, 1e-5
        ).violated


@pytest.mark.slow
def test_what_cannot_be_seen_is_named():
    parts = engine("ghost")
    with audit_dp_sgd(parts[1], num_canaries=40, delta=1e-5) as audit:
        epochs(*parts)
    assert (
        len(audit.findings.unseen) == 1
    )  # batches are counted by their gradients' norms
    text = " ".join(audit.report(details=True).split())
    assert (
        "Not checked: clipping of 8 of 8 batches: ghost clipping keeps no gradients"
        in text
    )
    assert (
        audit.record().findings.unchecked_assumptions == audit.findings.unseen
    )
    parts = engine()
    with audited(parts[1]) as audit:  # as if all examples were in each step
        epochs(*parts)
    parts[1].step_hook = None
    assert audit.findings.unseen == ()


@pytest.mark.parametrize("where", ["clipping", "StepSeen"])
def test_a_check_that_fails_ends_nothing(where, monkeypatch):
    plain = epochs(*engine())
    monkeypatch.setattr(DPSGDAudit, "_canary_sum", nothing)
    monkeypatch.setattr(
        optimizers if where == "clipping" else seen_steps, where, breaks
    )
    parts = engine()
    with audit_dp_sgd(parts[1], num_canaries=40, delta=1e-5) as audit:
        assert torch.equal(plain, epochs(*parts))
    monkeypatch.undo()
    assert audit.record().rounds in (
        1,
        8,
    )  # scored, but where its noise could not be looked at
