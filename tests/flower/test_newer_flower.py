"""What Flower after 1.42 does: stand-ins for it, as its releases say what they changed."""

import re
import threading
from typing import Any

import numpy as np
import pytest
from flower_audits import DELTA, PLAIN, REPLIES, ROUNDS, fixed, run
from flower_clients import DIM, drifting_app, model
from flwr.app import Array, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import centraldp_mods, fixedclipping_mod
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import dp_adaptive_clipping, dp_fixed_clipping
from flwr.supercore import differential_privacy as dp

from fl_epe.auditing import answers
from fl_epe.flower import CanaryAudit, InProcessGrid, RecordAudit, canary_mod
from fl_epe.simulation.grids import StopRequest, WatchedGrid

adaptive = flower.DifferentialPrivacyServerSideAdaptiveClipping
on_clients = flower.DifferentialPrivacyClientSideFixedClipping
COUNTERS = {"seen": np.arange(5), "steps": np.asarray(0)}
SENT = 7  # what a client adds to each counter


class WaitingGrid(InProcessGrid):
    """Its functions take an argument more, as ``pull_messages`` does since Flower 1.43."""

    waited = 0.0

    def __enter__(self) -> Any:
        return self

    def pull_messages(self, message_ids, *, wait=0.0, **newer):
        self.waited += wait
        return super().pull_messages(message_ids)

    def send_and_receive(self, messages, *, timeout=None, wait=0.0, **newer):
        self.waited += wait
        return super().send_and_receive(messages, timeout=timeout)


def query():
    return [Message(RecordDict(), 1, MessageType.QUERY)]


def answering():
    app = ClientApp()

    @app.query()
    def answer(message, context):
        return Message(RecordDict(), reply_to=message)

    return app


def test_a_watched_grid_hands_on_what_it_does_not_know():
    with WaitingGrid(answering(), 1) as grid:
        watched = WatchedGrid(grid, StopRequest())
        (reply,) = watched.send_and_receive(query(), timeout=600, wait=1.0)
        assert not reply.has_error()
        assert list(watched.pull_messages([], wait=2.0)) == []
        assert grid.waited == 3.0


def test_so_it_does_in_another_thread_and_around_another_grid():
    class Around:
        """Is no `InProcessGrid`, so that the watched grid would wait by itself."""

        def __init__(self, grid):
            self.send_and_receive = grid.send_and_receive

    replies: list[Message] = []
    with WaitingGrid(answering(), 1) as grid:
        watched = WatchedGrid(Around(grid), StopRequest())
        thread = threading.Thread(
            target=lambda: replies.extend(
                watched.send_and_receive(query(), wait=1.0)
            )
        )
        thread.start()
        thread.join()
        assert grid.waited == 1.0
    assert len(replies) == 1


def test_the_grid_in_this_process_takes_it():
    with InProcessGrid(answering(), 1) as grid:
        (reply,) = grid.send_and_receive(query(), timeout=600, wait=1.0)
        assert not reply.has_error()
        assert list(grid.pull_messages([], wait=1.0)) == []


class StopsWhenAsked(flower.FedAvg):
    """Has the argument of ``start`` that Flower's own has since 1.43, by keyword."""

    def start(self, grid, initial_arrays, num_rounds=3, **more):  # type: ignore[override]
        should_stop, result = (
            more.pop("should_stop", None),
            flower.Result(arrays=initial_arrays),
        )
        for server_round in range(1, num_rounds + 1):
            result = super().start(grid, result.arrays, 1, **more)
            if should_stop is not None and should_stop(server_round, result):
                break
        return result


@pytest.mark.parametrize("kind", [CanaryAudit, RecordAudit])
def test_should_stop_reaches_the_strategy(kind):
    requests = []

    def third(server_round, result):
        requests.append(server_round)
        return server_round == 3

    audit = kind(StopsWhenAsked(**PLAIN), delta=DELTA)
    with InProcessGrid(drifting_app(), 10) as grid:
        audit.start(grid, model(), num_rounds=ROUNDS, should_stop=third)
    assert requests == [1, 2, 3]


def of_floats(whole):
    """A function of clipping that sees the floating-point arrays alone, as Flower's since 1.45."""

    def some(param1, param2, clipping_norm):
        places = [
            i for i, value in enumerate(param1) if value.dtype.kind == "f"
        ]
        values = [param1[i] for i in places]
        result = whole(values, [param2[i] for i in places], clipping_norm)
        for i, value in zip(places, values, strict=True):
            param1[i] = value
        return result

    return some


def of_floats_in_place(whole):
    """As `of_floats`, where the arrays themselves are changed."""
    return lambda arrays, number: whole(
        [a for a in arrays if a.dtype.kind == "f"], number
    )


@pytest.fixture
def floats_only(monkeypatch):
    for module in (dp_fixed_clipping, dp_adaptive_clipping, centraldp_mods):
        for name, function in {
            "compute_clip_model_update": of_floats(
                dp.compute_clip_model_update
            ),
            "compute_adaptive_clip_model_update": of_floats(
                dp.compute_adaptive_clip_model_update
            ),
            "adaptive_clip_inputs_inplace": of_floats_in_place(
                dp.adaptive_clip_inputs_inplace
            ),
            "add_gaussian_noise_inplace": of_floats_in_place(
                dp.add_gaussian_noise_inplace
            ),
        }.items():
            monkeypatch.setattr(module, name, function, raising=False)


def counting(arrays):
    """Every client counts, in integers."""
    return arrays | {
        name: np.asarray(arrays[name] + SENT).astype(np.int64)
        for name in COUNTERS
        if name in arrays
    }


def with_counters():
    arrays = model()
    arrays.update({name: Array(value) for name, value in COUNTERS.items()})
    return arrays


CASES: dict[str, Any] = {
    "server": (fixed, [], {}),
    "adaptive": (
        lambda: adaptive(
            flower.FedAvg(**PLAIN), 1.0, REPLIES, initial_clipping_norm=0.1
        ),
        [],
        {},
    ),
    "clients": (
        lambda: on_clients(flower.FedAvg(**PLAIN), 0.1, 0.1, 10),
        [fixedclipping_mod, canary_mod],
        {"clients": [1, 2, 3], "num_canaries": 3},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_integers_that_dp_leaves_alone_are_left_alone_and_named(
    case, floats_only
):
    make, mods, settings = CASES[case]
    app = drifting_app(mods, norm=0.2, arrange=counting)
    audit, result = run(make(), app, with_counters(), **settings)
    record = audit.record()
    assert audit.faults == []
    assert record.dim == DIM
    assert record.findings.arrays_left_out == ("seen", "steps")
    fit = answers(record)[1].fit
    assert fit.low < 1 < fit.high
    # The first round adds 10/15 of 7, all rounds of clipped updates would add 0.6 at most.
    assert np.all(result.arrays["seen"].numpy() - COUNTERS["seen"] > 4)
    caveat = record.design.caveat
    assert re.search(
        r"No ε holds for what clients answer in seen, steps:", caveat
    )
    assert "clients answer in seen, steps" in " ".join(
        audit.report(details=True).split()
    )


@pytest.mark.slow
def test_arrays_that_are_clipped_need_no_caveat():
    assert run(fixed())[0].record().design.caveat is None
    plain = run(
        flower.FedAvg(**PLAIN), drifting_app(arrange=counting), with_counters()
    )[0]
    assert plain.record().design.caveat is None  # without DP no ε is promised


def test_of_many_arrays_three_are_named():
    counters = {f"norm{i}.steps": Array(np.asarray(0)) for i in range(5)}
    text = str(
        CanaryAudit(fixed(), delta=DELTA)._run.wrapped.unclipped(counters)
    )
    assert "in norm0.steps, norm1.steps, norm2.steps, …: no canary" in text
