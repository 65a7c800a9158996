"""Arrays that are no free parameters: variances under any name, frozen parts, float16."""

import delta_replies
import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower

from fl_epe.auditing import EVERY_ROUND, answer, answer_metrics, answers
from fl_epe.flower import CanaryAudit, InProcessGrid, canary_mod
from fl_epe.flower.free_arrays import leave_alone, not_free, unmoved
from fl_epe.flower.layout import Layout

NODES, ROUNDS = 10, 20
PLAIN = {
    "fraction_evaluate": 0.0,
    "min_train_nodes": NODES,
    "min_available_nodes": NODES,
}
COMMON = np.random.default_rng(99).standard_normal(4000)
HEAD = (65, 10)


def as_record(arrays):
    return ArrayRecord(
        {name: Array(np.asarray(value)) for name, value in arrays.items()}
    )


def app_of(step, mods=()):
    """Clients whose new arrays are what ``step`` makes of the model, with a generator and t."""
    app = ClientApp()

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        t = int(message.content["config"]["server-round"])
        rng = np.random.default_rng(
            (int(context.node_config["partition-id"]), t)
        )
        model = {
            name: array.numpy()
            for name, array in message.content["arrays"].items()
        }
        new = {
            name: value.astype(model[name].dtype)
            for name, value in step(model, rng, t).items()
        }
        metrics = MetricRecord({"num-examples": 10})
        content = {"arrays": as_record(model | new), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    return app


def run(app, arrays, strategy=None, *, audited=True, rounds=ROUNDS, **settings):
    """The audit, and the final arrays."""
    wrapped = strategy or flower.FedAvg(**PLAIN)
    wrapped = (
        CanaryAudit(wrapped, delta=1e-3, seed=1, **settings)
        if audited
        else wrapped
    )
    np.random.seed(0)  # noqa: NPY002 - Flower's DP noise is the global generator's
    with InProcessGrid(app, NODES) as grid:
        result = wrapped.start(grid, as_record(arrays), num_rounds=rounds)
    return wrapped, {
        name: array.numpy() for name, array in result.arrays.items()
    }


def dp(z=1.0, clip=1.0):
    """With room for a canary a round."""
    base = flower.FedAvg(**PLAIN)
    return flower.DifferentialPrivacyServerSideFixedClipping(
        base, z, clip, NODES + 1
    )


def small(*shape):
    return (0.1 * np.random.default_rng(1).standard_normal(shape)).astype("f4")


def moves_head(model, rng, t):
    step = COMMON[: np.prod(HEAD)].reshape(HEAD) + rng.standard_normal(HEAD)
    return {"head": model["head"] + 0.05 * step}


def moves_body_first(model, rng, t):
    body = model["body"] + 0.05 * (
        COMMON[: len(model["body"])] + rng.standard_normal(4000)
    )
    return moves_head(model, rng, t) | (
        {"body": body} if t <= ROUNDS // 2 else {}
    )


def epsilons(audit):
    return answer_metrics(answers(audit.record()))


NAMES = {
    "list": "4",
    "keras": "bn/moving_variance:0",
    "flax": "batch_stats/bn/var",
    "paddle": "batch_norm2d_0.w_2",
    "paddle-variance": "bn._variance",
    "sklearn": "var_",
    "adam": "exp_avg_sq",
    "ema": "running_var_ema",
    "torch": "running_var",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "by_clients"),
    [
        *(pytest.param(name, False, id=key) for key, name in NAMES.items()),
        pytest.param("4", True, id="clients"),
    ],
)
def test_no_canary_moves_a_variance_whatever_its_name(name, by_clients):
    def step(model, rng, t):
        variance = 0.9 * model[name] + 0.1 * 0.01 * rng.random(40)
        change = 0.5 * (COMMON[:1000] + rng.standard_normal(1000)).reshape(
            40, 25
        )
        return {"w": model["w"] + change, name: variance}

    arrays = {"w": small(40, 25), name: np.full(40, 0.01, "f4")}
    more = {"clients": [1, 2, 3]} if by_clients else {}
    audit, final = run(app_of(step, [canary_mod]), arrays, **more)
    assert final[name].min() > 0  # -0.51 with a canary in it
    assert audit.record().findings.arrays_left_out == (name,)
    assert audit.record().presence.any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", [flower.FedAvg(**PLAIN), dp()], ids=["fedavg", "dp"]
)
def test_a_frozen_body_is_left_alone_and_epsilon_is_that_without_it(strategy):
    """ε of every round was 78 in place of 20 under FedAvg, and the body moved by 2.7."""
    head = small(*HEAD)
    by_hand, _ = run(app_of(moves_head), {"head": head}, strategy)
    body = small(4000)
    audit, final = run(
        app_of(moves_head), {"body": body, "head": head}, strategy
    )
    record = audit.record()
    assert (record.dim, record.findings.arrays_left_out) == (650, ("body",))
    assert "Arrays without canaries: body." in record.findings.plan
    if isinstance(strategy, flower.FedAvg):  # which adds no noise to the body
        np.testing.assert_allclose(final["body"], body, rtol=1e-6)
    results, expected = epsilons(audit), epsilons(by_hand)
    assert (
        expected["epsilon-all-low"]
        < results["epsilon-all"]
        < expected["epsilon-all-high"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("by_clients", [False, True], ids=["server", "clients"])
@pytest.mark.parametrize(
    "make", [lambda: flower.FedAvg(**PLAIN), dp], ids=["fedavg", "dp"]
)
def test_an_array_that_is_frozen_later_is_left_alone_from_then_on(
    make, by_clients
):
    """Its canaries then lie in the other arrays, and show up as strongly as expected."""
    bodies = []

    def step(model, rng, t):
        bodies.append((t, model["body"]))
        return moves_body_first(model, rng, t)

    more = {"clients": [1, 2, 3]} if by_clients else {}
    arrays = {"body": small(4000), "head": small(*HEAD)}
    audit, final = run(app_of(step, [canary_mod]), arrays, make(), **more)
    record = audit.record()
    assert record.dim == 4650
    assert record.presence[ROUNDS // 2 :].any()
    named = "In rounds in which no reply moves these arrays, canaries leave them alone: body."
    assert named in record.findings.plan
    if not isinstance(audit.strategy, flower.FedAvg):
        fit = answer(record, EVERY_ROUND).fit
        assert fit.low < 1 < fit.high
        return
    frozen = next(body for t, body in bodies if t == ROUNDS // 2 + 1)
    np.testing.assert_allclose(final["body"], frozen, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_clients_that_do_not_move_at_first_decide_nothing():
    """A warm-up: the layout is that of the first round in which somebody moved."""

    def step(model, rng, t):
        return moves_head(model, rng, t) if t > 2 else {}

    body = small(4000)
    audit, final = run(app_of(step), {"body": body, "head": small(*HEAD)})
    assert audit.record().findings.arrays_left_out == ("body",)
    assert audit.record().presence[2:].any()
    np.testing.assert_allclose(final["body"], body, rtol=1e-6)


def test_a_model_without_a_negative_entry_is_not_measured_and_not_changed():
    def step(model, rng, t):
        return {"counts": model["counts"] + rng.random(50)}

    arrays = {"counts": np.zeros(50)}
    _, plain = run(app_of(step), arrays, audited=False)
    audit, final = run(app_of(step), arrays)
    np.testing.assert_allclose(
        final["counts"], plain["counts"]
    )  # Flower sums in any order
    assert "Not measured" in audit.report()
    assert "no negative entry, as variances" in audit.faults[0]


@pytest.mark.slow
@pytest.mark.parametrize("z", [1.0, 0.05])
@pytest.mark.parametrize("by_clients", [False, True], ids=["server", "clients"])
def test_float16_holds_a_canary_that_is_to_be_clipped(z, by_clients):
    """ε was 1.0 for 26, and 0.5 for 1,643: the norm of 1,000 overflows, and is clipped to 0."""

    def step(model, rng, t):
        update = rng.standard_normal((50, 40))
        return {"w": model["w"] + 2 * update / np.linalg.norm(update)}

    more = {"clients": [1, 2]} if by_clients else {}
    app, results = app_of(step, [canary_mod]), []
    for kind in ("f2", "f4"):
        audit, _ = run(app, {"w": small(50, 40).astype(kind)}, dp(z), **more)
        results.append(epsilons(audit))
    half, single = results
    for adversary in ("all", "final"):
        name = f"epsilon-{adversary}"
        assert half[name] == pytest.approx(single[name], rel=0.05)
    assert half["epsilon-all"] > 10


def test_a_clip_norm_that_float16_cannot_hold_is_named():
    def step(model, rng, t):
        return {"w": model["w"] + rng.standard_normal((50, 40))}

    audit, _ = run(
        app_of(step),
        {"w": small(50, 40).astype("f2")},
        dp(clip=200.0),
        rounds=2,
    )
    assert "clip_norm=200 to be at most 127.969" in audit.faults[0]
    assert "Not measured" in audit.report()


BEFORE = {
    "weight": np.array([0.1, -0.2]),
    "bias": np.zeros(2),
    "frozen": np.array([-1.0, 2.0]),
    "steps": np.array([-3.0]),
    "var": np.ones(2),
}


def model_of(rng):
    change = {
        "weight": rng.standard_normal(2),
        "bias": np.array([rng.random(), -rng.random()]),
        "frozen": np.zeros(2),
        "steps": np.ones(1),
        "var": rng.random(2) - 0.5,
    }
    return {name: BEFORE[name] + change[name] for name in BEFORE}


def test_what_replies_show_to_be_no_free_parameter():
    rng = np.random.default_rng(0)
    models = [model_of(rng) for _ in range(3)]
    assert not_free(BEFORE, models) == {"frozen", "steps", "var"}
    assert unmoved(BEFORE, models) == {"frozen"}


def test_identical_replies_do_not_say_that_nothing_is_free():
    reply = {"weight": np.array([0.3, -0.1]), "frozen": np.array([-1.0])}
    before = {"weight": np.array([0.1, -0.2]), "frozen": np.array([-1.0])}
    assert (
        not_free(before, [reply, reply])
        == not_free(before, [reply])
        == {"frozen"}
    )


def test_a_canary_that_leaves_arrays_alone_has_norm_1():
    layout = Layout.of(as_record({"a": small(30), "b": small(4, 5)}))
    canary = np.full(50, 1 / np.sqrt(50), np.float32)
    remainder = leave_alone({"b"}, canary, layout)
    assert not remainder[30:].any()
    np.testing.assert_allclose(remainder[:30], 1 / np.sqrt(30), rtol=1e-6)
    for names in ((), ("a", "b")):
        assert leave_alone(names, canary, layout) is canary


@pytest.mark.slow
def test_a_first_round_without_replies_decides_nothing():
    def step(model, rng, t):
        if t == 1:
            raise RuntimeError
        return moves_head(model, rng, t)

    arrays = {"body": small(4000), "head": small(*HEAD)}
    audit, _ = run(app_of(step, [canary_mod]), arrays, clients=[1, 2, 3])
    record = audit.record()
    assert record.findings.arrays_left_out == ("body",)
    assert record.presence[2:].all()
    assert not [fault for fault in audit.faults if "no canary joined" in fault]


class KilledError(Exception):
    """Ends a server app where it stands."""


@pytest.mark.slow
@pytest.mark.parametrize("kill", [0, 1, 4])
def test_a_killed_audit_goes_on_with_the_same_arrays_left_alone(tmp_path, kill):
    arrays, models = {"body": small(4000), "head": small(*HEAD)}, []

    def evaluate(server_round, arrays):
        models.append(arrays)
        if server_round == kill + 1:
            raise KilledError

    def start(initial, **more):
        audit = CanaryAudit(
            flower.FedAvg(**PLAIN), delta=1e-3, checkpoint=tmp_path
        )
        with InProcessGrid(app_of(moves_head), NODES) as grid:
            audit.start(grid, initial, num_rounds=8, **more)
        return audit

    with pytest.raises(KilledError):
        start(as_record(arrays), evaluate_fn=evaluate)
    record = start(models[kill]).record()
    assert (record.dim, record.findings.arrays_left_out) == (650, ("body",))
    assert record.rounds == 8
    assert record.findings.resumed_after == ((kill,) if kill else ())


@pytest.mark.slow
def test_clients_that_answer_with_updates_show_the_same():
    def step(model, rng, t):
        head = moves_head(model, rng, t)["head"]
        variance = 0.9 * model["var"] + 0.1 * 0.01 * rng.random(40)
        new = model | {"head": head, "var": variance}
        return {name: new[name] - model[name] for name in model}

    arrays = {
        "body": small(4000),
        "head": small(*HEAD),
        "var": np.full(40, 0.01, "f4"),
    }
    strategy = delta_replies.AddsDeltas(**PLAIN)
    audit, final = run(
        app_of(step), arrays, strategy, num_canaries=10, max_share=0.5
    )
    assert audit.record().findings.arrays_left_out == ("body", "var")
    assert audit.record().presence.any()
    np.testing.assert_array_equal(final["body"], arrays["body"])
    assert final["var"].min() > 0


@pytest.mark.slow
def test_rounds_that_move_nothing_of_what_canaries_move_have_none():
    """The head and the body take turns: the head is measured, and the body has no canary."""

    def step(model, rng, t):
        if t % 2:
            return moves_head(model, rng, t)
        return {"body": model["body"] + 0.05 * rng.standard_normal(4000)}

    audit, _ = run(app_of(step), {"body": small(4000), "head": small(*HEAD)})
    record = audit.record()
    assert record.findings.arrays_left_out == ("body",)
    assert record.presence[::2].any()
    assert not record.presence[1::2].any()
    assert "It leaves alone what replies do not change" in audit.faults[0]
