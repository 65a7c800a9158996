"""The strategy and the worker app in process, run for real on small tasks."""

import dataclasses
import gc
import sys

import numpy as np
import pytest
import reference
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from tiny import Tiny

from fl_epe import CanarySet, epsilon_from_record
from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    STATISTICS,
    NotMeasured,
    divergence,
    scores_of,
    seen_by,
    updates_lost,
)
from fl_epe.config import RunConfig
from fl_epe.messages import pack
from fl_epe.seeding import Seeds
from fl_epe.simulation import (
    DPFedAvg,
    InProcessGrid,
    Job,
    run_on_grid,
    simulate,
    worker_app,
)
from fl_epe.simulation.messages import PartialAggregate
from fl_epe.tasks import load_task

SEEDS = Seeds.derive(7)


SMALL = RunConfig(
    clients=20,
    rounds=8,
    clients_per_round=5,
    num_canaries=12,
    unobserved=12,
    noise_multiplier=0.3,
    canary_participations=1,
)


def _run(task=None, config=SMALL, seeds=SEEDS, **options):
    return simulate(Job(task or Tiny(), config, seeds), **options)


def _stuck(rng, dim, std):
    return std * np.random.default_rng(7**30).standard_normal(dim)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "mechanism"),
    [(None, "independent"), (None, "banded:bands=2"), (_stuck, "independent")],
    ids=["right", "correlated", "stuck"],
)
def test_the_noise_is_checked(noise, mechanism, monkeypatch):
    if noise is not None:
        monkeypatch.setattr("fl_epe.simulation.dp_fedavg.gaussian_noise", noise)
    found = _run(
        config=dataclasses.replace(SMALL, rounds=4, mechanism=mechanism)
    ).findings
    assert (
        found.noise[0]
        == f"Noise: {'as claimed' if noise is None else 'not as claimed'}."
    )
    assert [
        ("have the same noise" in text) for text in found.mechanism_faults
    ] == ([] if noise is None else [True])


def _final_model(config, workers):
    """The model that a run ends with, caught on its way to the evaluation."""
    caught = []

    class Catching(Tiny):
        def evaluate(self, theta):
            caught.append(theta)
            return super().evaluate(theta)

    record = _run(Catching(), config, workers=workers)
    return caught[-1], record


def test_the_reference_loop_is_short():
    assert len(reference.block().splitlines()) <= 80


def test_equals_the_reference_loop(monkeypatch):
    theta, clients, canaries, clip_norms = reference.train(Tiny(), SMALL, SEEDS)
    at_once, _ = _final_model(SMALL, workers=2)
    np.testing.assert_allclose(
        at_once, theta, rtol=0, atol=1e-6
    )  # float32, in another order
    monkeypatch.setenv("FL_EPE_CHUNK", "1")
    model, record = _final_model(SMALL, workers=2)
    assert np.array_equal(
        model, theta
    )  # to the last bit: clipped sums are exact
    assert np.array_equal(record.presence, canaries)
    assert np.array_equal(record.mechanism.clip_norms, clip_norms)
    per_round = np.split(record.clients.ids, record.clients.offsets[1:-1])
    for mine, theirs in zip(per_round, clients, strict=True):
        assert np.array_equal(mine, np.flatnonzero(theirs))


@pytest.mark.slow
def test_equals_the_reference_loop_on_the_real_task():
    task = load_task("digits", num_clients=12)
    config = dataclasses.replace(
        SMALL, clients=12, clients_per_round=4, rounds=3
    )
    theta, _, canaries, _ = reference.train(task, config, SEEDS)
    record = _run(task, config)
    norm = np.linalg.norm(theta.astype(float))
    assert record.norms.final == pytest.approx(norm, rel=1e-12)
    assert np.array_equal(record.presence, canaries)
    vectors = CanarySet(task.dim, 24, SEEDS.canary)
    cosines = [
        vectors.vector(i).astype(float) @ theta / norm for i in range(24)
    ]
    together = np.concatenate([record.observed.final, record.unobserved.final])
    # a model that differs by 1e-5 relative moves a cosine of spread 1/√d by 1e-5/√d
    np.testing.assert_allclose(together, cosines, atol=1e-5 / np.sqrt(task.dim))


def test_two_runs_give_the_same_bits():
    first, second = _run().by_name(), _run().by_name()
    arrays = [
        name for name, value in first.items() if isinstance(value, np.ndarray)
    ]
    assert {
        "observed.means",
        "unobserved.displacement",
        "norms.model_updates",
        "clients.ids",
    } <= {*arrays}
    for name in arrays:
        assert np.array_equal(first[name], second[name], equal_nan=True), name


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3, 7])
def test_the_number_of_workers_does_not_matter(workers):
    model, record = _final_model(SMALL, workers)
    base_model, base = _final_model(SMALL, 2)
    assert np.array_equal(record.presence, base.presence)
    assert np.array_equal(record.clients.ids, base.clients.ids)
    assert np.array_equal(model, base_model)


def test_noise_has_its_standard_deviation_and_uses_the_clip_norm_of_its_round():
    config = dataclasses.replace(
        SMALL,
        full_knowledge=True,
        num_canaries=2,
        noise_multiplier=1.0,
        clip_count_std=4.0,
    )
    record = _run(config=config)
    assert (
        np.ptp(record.mechanism.clip_norms)
        > 0.1 * record.mechanism.clip_norms[0]
    )  # the norm does move
    noise = (
        record.norms.residuals
        * config.cohort_size
        / (record.mechanism.clip_norms * np.sqrt(record.dim))
    )
    # noise and at most two canaries of norm C; a norm of d normals varies by 1/√(2d)
    slack = 4 / np.sqrt(2 * record.dim) + 2 / record.dim
    np.testing.assert_allclose(noise, config.sum_noise_multiplier(), rtol=slack)


def test_canaries_arrive_at_exactly_the_clip_norm():
    config = dataclasses.replace(
        SMALL, full_knowledge=True, noise_multiplier=0.0
    )
    record = _run(config=config)
    vectors = CanarySet(record.dim, 24, SEEDS.canary)
    for t in range(record.rounds):
        present = np.flatnonzero(record.presence[t])
        total = np.sum(
            [vectors.vector(i).astype(float) for i in present], axis=0
        )
        expected = (
            np.linalg.norm(total)
            * record.mechanism.clip_norms[t]
            / config.cohort_size
        )
        assert record.norms.residuals[t] == pytest.approx(expected, rel=1e-5)


def test_unobserved_canaries_never_take_part():
    config = dataclasses.replace(
        SMALL, noise_multiplier=0.0, canary_participations=8, unobserved=400
    )
    record = _run(config=config)
    scores = record.unobserved.means * np.sqrt(record.dim)
    # 8 correlated rounds of 400 standard scores: at least 400 independent ones
    assert abs(scores.mean()) < 4 / np.sqrt(400)
    assert record.observed.means.mean() * np.sqrt(record.dim) > 1


@pytest.mark.slow
def test_the_matched_filter_meets_the_analytical_value():
    config = dataclasses.replace(
        SMALL,
        num_canaries=400,
        noise_multiplier=0.5,
        clip_norm=1.0,
        clients_per_round=10,
        delta=1e-3,
    )
    estimate = epsilon_from_record(
        _run(Tiny(inputs=4000), config), adversary=EVERY_ROUND
    )
    from fl_epe import epsilon_two_gaussians

    # A client takes part in 4 of 8 rounds, a canary in one.
    shifts = 2 * (
        1 / config.sum_noise_multiplier() + np.array([-4, 4]) / np.sqrt(400)
    )
    low, high = (
        epsilon_two_gaussians(0, 1, shift, 1, 1e-3) for shift in shifts
    )
    # the real clients' part of the mean adds to the noise: at most 20² + 50 against 0.25 × 20005
    assert low * 0.95 <= estimate.epsilon <= high


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"participation": "poisson", "unobserved": 0},
        {
            "participation": "min-separation:separation=2",
            "clipping": "fixed",
            "clip_norm": 0.5,
        },
        {
            "participation": "drop-out:of=cyclic,rate=0.2",
            "canary_participations": 2,
        },
        {"server_optimizer": "adam", "server_learning_rate": 0.01},
        {"canaries_vote": True, "canary_participations": 3},
        {"noise_multiplier": 0.0, "server_momentum": 0.0},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_every_kind_of_run_leaves_a_whole_record(changes, tmp_path):
    record = _run(config=dataclasses.replace(SMALL, **changes))
    assert record.rounds == 8
    assert not record.clients.absent.any()
    observed, unobserved = record.model_update_cosines()
    assert observed.shape == record.observed.means.shape
    assert unobserved.shape == record.unobserved.means.shape
    assert np.all(np.abs(observed) <= 1 + 1e-6)
    loaded = type(record).load(record.save(tmp_path / "record.npz"))
    assert np.array_equal(loaded.observed.means, record.observed.means)
    assert loaded.mechanism.server.name == record.mechanism.server.name


def test_model_update_cosines_follow_from_the_means_with_momentum():
    """The cosines with θ_t − θ_{t−1} that the record derives are those of the real deltas."""
    models = []

    class Catching(Tiny):
        def evaluate(self, theta):
            models.append(theta.astype(np.float64))
            return super().evaluate(theta)

    record = simulate(Job(Catching(), SMALL, SEEDS, evaluate_every=1))
    vectors = CanarySet(record.dim, 24, SEEDS.canary)
    observed, _ = record.model_update_cosines()
    for t, delta in enumerate(np.diff(models, axis=0)):
        cosines = vectors.dot(delta)[:12] / np.linalg.norm(delta)
        np.testing.assert_allclose(observed[t], cosines, atol=1e-5)


class TestFaults:
    def test_failing_and_poisoned_clients_count_as_absent(self):
        task = Tiny(raising=(3,), poisoned=(5,))
        record = _run(task)
        took_part = np.bincount(record.clients.ids, minlength=20)
        assert record.clients.absent.sum() == took_part[3] + took_part[5] == 4
        assert any(
            "client 3: OSError: disk of client 3 is gone" in f
            for f in record.provenance.faults
        )
        assert any(
            "client 5: its update was not finite" in f
            for f in record.provenance.faults
        )

    def test_the_denominator_stays(self):
        """Without noise, losing a client leaves the others' share of the mean as it was."""
        config = dataclasses.replace(
            SMALL,
            rounds=1,
            canary_participations=1,
            noise_multiplier=0.0,
            full_knowledge=True,
        )
        whole, broken = (
            _run(config=config),
            _run(Tiny(raising=tuple(range(20))), config),
        )
        assert broken.clients.absent[0] == 5
        # with all clients lost, the mean is the canaries' sum over the same n
        assert broken.norms.means[0] == pytest.approx(
            whole.norms.residuals[0], rel=1e-6
        )

    def test_a_run_that_loses_everything_has_measured_nothing(self):
        app = ClientApp()
        good = worker_app(Tiny())
        app.query()(lambda message, context: good(message, context))

        @app.train()
        def train(message, context):
            raise RuntimeError("out of memory")

        with InProcessGrid(app, 2) as grid:
            record = run_on_grid(grid, Job(Tiny(), SMALL, SEEDS))
        lost = record.clients.absent.sum()
        assert updates_lost(record) == f"{lost} of {lost} updates were lost"
        with pytest.raises(
            NotMeasured, match="no canary took part in 8 rounds"
        ):
            epsilon_from_record(record)

    def test_a_model_that_overflows_leaves_a_record(self):
        config = dataclasses.replace(
            SMALL, server_learning_rate=1e38, clipping="fixed"
        )
        record = _run(config=config)
        assert divergence(record)[0] == "the final model is not finite"
        with pytest.raises(NotMeasured, match="is not finite"):
            epsilon_from_record(record, adversary=FINAL_MODEL)

    def test_a_record_knows_the_chance_level_of_its_task(self):
        held_out = Tiny().held_out().targets.numpy()
        share = np.bincount(held_out).max() / len(held_out)
        assert _run().design.chance_accuracy == pytest.approx(share)

    @pytest.mark.slow
    def test_a_node_that_fails_loses_its_share_only(self):
        good = worker_app(Tiny())
        app = ClientApp()
        app.query()(lambda message, context: good(message, context))

        @app.train()
        def train(message, context):
            if (
                context.node_config["partition-id"] == 1
                and message.metadata.group_id == "3"
            ):
                raise RuntimeError("out of memory")
            return good(message, context)

        with InProcessGrid(app, 2) as grid:
            record = run_on_grid(grid, Job(Tiny(), SMALL, SEEDS))
        lost = np.flatnonzero(record.clients.absent)
        assert lost.tolist() == [2]
        assert any(
            "round 3, node 2: RuntimeError: out of memory" in f
            for f in record.provenance.faults
        )
        # what was lost did not take part, and the record says so
        base = _run()
        assert record.presence[2].sum() < base.presence[2].sum()
        assert record.rounds == 8

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            pytest.param(
                lambda part: setattr(part, "total", np.zeros(3)),
                "to be float64",
                id="to-be-float64",
            ),
            pytest.param(
                lambda part: part.total.fill(np.nan), "norm=nan", id="norm=nan"
            ),
            pytest.param(
                lambda part: part.total.fill(1e6),
                "to be at most",
                id="to-be-at-most",
            ),
            pytest.param(
                lambda part: setattr(part, "clients", 99),
                "clients=99",
                id="clients=99",
            ),
            pytest.param(
                lambda part: setattr(part, "clients", [1]),
                "clients=[1] to have the right type",
                id="a-list",
            ),
            pytest.param(
                lambda part: setattr(part, "canaries", 0.5),
                "canaries=0.5 to have the right type",
                id="a-half",
            ),
            *(
                pytest.param(
                    lambda part, wrong=wrong: setattr(
                        part, "clients_total", wrong
                    ),
                    "Expected no clients_total",
                    id=f"clients-apart-{name}",
                )
                for name, wrong in [
                    ("large", np.full(Tiny().dim, 1e9)),
                    ("nan", np.full(Tiny().dim, np.nan)),
                    ("short", np.zeros(3)),
                ]
            ),
        ],
    )
    def test_answers_that_do_not_fit_are_refused(self, spoil, message):
        good = worker_app(Tiny())
        app = ClientApp()
        app.query()(lambda message, context: good(message, context))

        @app.train()
        def train(message, context):
            reply = good(message, context)
            if context.node_config["partition-id"] == 0:
                part = PartialAggregate.decode(reply.content)
                part.total = part.total.copy()
                spoil(part)
                reply.content = part.encode()
            return reply

        with InProcessGrid(app, 2) as grid:
            job = Job(Tiny(), dataclasses.replace(SMALL, rounds=2), SEEDS)
            record = run_on_grid(grid, job)
        absent = record.clients.absent
        assert absent is not None
        assert np.all(absent >= 1)
        assert any(message in fault for fault in record.provenance.faults)
        assert np.isfinite(record.norms.final)


class TestBadInput:
    def test_a_record_needs_a_round(self):
        with pytest.raises(ValueError, match="after at least one round"):
            DPFedAvg(SMALL, SEEDS).record(ArrayRecord())

    def test_a_final_model_of_another_dimension(self):
        """A record is of one dimension; a model that does not match it is refused."""
        strategy = DPFedAvg(SMALL, SEEDS)
        with InProcessGrid(worker_app(Tiny()), 1) as grid:
            strategy.start(grid, pack(theta=Tiny().initial(1)), num_rounds=1)
            with pytest.raises(
                ValueError, match=r"final\.shape=\(7,\) to be \(2005,\)"
            ):
                strategy.record(pack(theta=np.zeros(7, np.float32)))

    def test_the_model_must_be_flat_floats(self):
        strategy = DPFedAvg(SMALL, SEEDS)
        arrays = pack(theta=np.zeros((2, 2), np.float32))
        with pytest.raises(
            ValueError, match=r"flat float32 model, got float32 \(2, 2\)"
        ):
            strategy.configure_train(1, arrays, None, None)
        with pytest.raises(
            ValueError, match=r"flat float32 model, got int64 \(3,\)"
        ):
            strategy.configure_train(
                1, pack(theta=np.zeros(3, int)), None, None
            )

    def test_the_task_must_have_the_clients(self):
        with pytest.raises(
            ValueError, match="clients=20 to be those of the task, 7"
        ):
            Job(Tiny(clients=7), SMALL, SEEDS)

    def test_unknown_backends_and_numbers(self):
        with pytest.raises(ValueError, match="backend='spark'"):
            _run(backend="spark")
        with pytest.raises(ValueError, match="workers=0"):
            _run(workers=0)
        with pytest.raises(ValueError, match="nodes=0"):
            InProcessGrid(worker_app(Tiny()), 0)
        with pytest.raises(ValueError, match="evaluate_every=0"):
            Job(Tiny(), SMALL, SEEDS, evaluate_every=0)
        with pytest.raises(ValueError, match="checkpoint_every=0"):
            _run(checkpoint_every=0)


class TestCoins:
    config = dataclasses.replace(
        SMALL, inclusion="coin", num_canaries=200, unobserved=200
    )

    def test_every_canary_is_on_one_side_and_the_record_says_which(self):
        record = _run(config=self.config)
        together = np.sort(
            np.concatenate([record.observed.ids, record.unobserved.ids])
        )
        assert np.array_equal(together, np.arange(400))
        # 400 fair coins
        assert abs(len(record.observed.ids) - 200) < 4 * np.sqrt(400) / 2
        assert record.mechanism.inclusion == "coin"
        assert np.all(record.presence.sum(axis=0) == 1)
        assert (self.config.cohort_size, self.config.canaries_per_round) == (
            5,
            200 / 8,
        )

    def test_those_whose_coin_says_so_take_part(self):
        config = dataclasses.replace(
            self.config, noise_multiplier=0.0, full_knowledge=True
        )
        record = _run(config=config)
        vectors = CanarySet(record.dim, 400, SEEDS.canary)
        ids = record.observed.ids[record.presence[0]]
        total = (
            sum(vectors.vector(i).astype(float) for i in ids)
            * record.mechanism.clip_norms[0]
        )
        expected = np.linalg.norm(total) / config.cohort_size
        assert record.norms.residuals[0] == pytest.approx(expected, rel=1e-6)


def test_full_knowledge_subtracts_all_canaries_but_one():
    """120 canaries in every round of 2005 dimensions; left in, they would widen the null."""
    config = dataclasses.replace(
        SMALL,
        num_canaries=120,
        unobserved=120,
        canary_participations=8,
        noise_multiplier=0.7,
        clip_count_std=4.0,
        full_knowledge=True,
    )
    record = _run(Tiny(inputs=400), config)
    scores = scores_of(seen_by(record, STATISTICS["full-knowledge"]))
    observed, unobserved = scores.both()
    expected = np.sqrt(8) / config.sum_noise_multiplier()
    assert abs(observed.mean() - expected) < 4 / np.sqrt(120)
    for side in (
        observed,
        unobserved,
    ):  # a standard deviation is known to 1/√(2·120)
        assert abs(side.std() - 1) < 4 / np.sqrt(2 * 120)
    assert scores.spread == 1


@pytest.mark.slow
def test_full_knowledge_meets_the_analytical_value_whatever_the_updates_do():
    """At z = 0.02 the real updates drown the noise; subtracting them leaves the mechanism."""
    for z in (0.02, 0.1, 0.5):
        config = dataclasses.replace(
            SMALL,
            num_canaries=400,
            noise_multiplier=z,
            clip_norm=1.0,
            clip_count_std=2.0,
            full_knowledge=True,
        )
        record = _run(Tiny(inputs=4000), config)
        observed, unobserved = scores_of(
            seen_by(record, STATISTICS["full-knowledge"])
        ).both()
        assert abs(observed.mean() - 1 / config.sum_noise_multiplier()) < 4 / 20
        assert abs(unobserved.mean()) < 4 / np.sqrt(12)
    with pytest.raises(ValueError, match="full_knowledge=True"):
        scores_of(seen_by(_run(), STATISTICS["full-knowledge"]))


def test_no_client_is_lost_to_the_parser():
    """NumPy's headers go through Python's parser, which fails now and then in threads."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        for _ in range(60):
            for array in message.content["arrays"].values():
                array.numpy()[:] = context.node_id  # a copy of one's own
        return Message(RecordDict(), reply_to=message)

    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(20, 2, 2)
    gc.callbacks.append(
        _nothing
    )  # garbage collection then runs Python code in between
    try:
        with InProcessGrid(app, 24) as grid:
            content = RecordDict(
                {"arrays": pack(theta=np.zeros((4, 5)), other=np.ones(3))}
            )
            messages = [
                Message(content, n, MessageType.TRAIN)
                for n in grid.get_node_ids()
            ]
            replies = list(grid.send_and_receive(messages))
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(_nothing)
    assert [reply.error.reason for reply in replies if reply.has_error()] == []
    np.testing.assert_array_equal(
        content["arrays"]["theta"].numpy(), np.zeros((4, 5))
    )


def _nothing(*args):
    """A callback of the garbage collector."""


def test_the_updates_of_an_optimizer_that_is_not_linear_are_scored():
    record = _run(config=dataclasses.replace(SMALL, server_optimizer="adam"))
    assert record.observed.model_updates is not None
    assert not np.allclose(
        record.observed.model_updates, record.observed.means, atol=1e-3
    )
