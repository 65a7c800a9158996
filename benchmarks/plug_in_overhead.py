"""What does the plug-in audit cost? The wall time that `CanaryAudit` adds to a round.

    python benchmarks/plug_in_overhead.py                # both strategies, in process: 4 minutes
    python benchmarks/plug_in_overhead.py --ray          # under Flower's simulation, two workers
    python benchmarks/plug_in_overhead.py --client-noise # clients add noise that they promised

A plain strategy and the same strategy under audit play rounds in turn, on the same nodes: a hundred
clients that train the EMNIST CNN (1,206,590 parameters) on two batches of 16 digits, one message
each. The overhead is the median over pairs of the audited time over the plain time, less 1. "The
server's" leaves out the time of clients and transport, which differs only by chance. Independent
canaries (``canary_kind="sphere"``) are scored at the end of a run: that is measured beside every
pair of rounds with some of them, and its share for 100 rounds is added to the audited round.

1,000 canaries in 100 rounds, 250 unobserved ones (the default), six pairs, two cores, torch
2.13.0, 2026-11-24, in process::

                                     FedAvg                    fixed clipping
    overhead                3.1% (1.9 –  8.1)                3.7% (-1.1 – 11.6)
    the server's            7.0% (6.8 –  7.8)                6.1% ( 5.6 – 6.9)
      for more replies      0.4%                             1.3%
      reading nine replies  0.3%                             0.2%
      making canaries       1.2%                             0.6%
      making replies        0.6%                             0.5%
      scoring               1.1%                             1.4%
      others taken out      1.3%                             0.1%

In brackets is the middle half of the pairs; the rounds of the clients alone differ by 15%.

With ``--client-noise --pairs 4 --clients 40 --canaries 400`` the test of 40 noisy replies took
168 ms of a round of 4.9 s, 3.4%, and 171 ms of 5.3 s, 3.2% (2026-11-28, the same machine, idle):
4.2 ms for each reply of 1.2 million numbers, most of it to read what is in no cache.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)

from fl_epe.auditing.answer.epsilon_so_far import EpsilonSoFar
from fl_epe.auditing.recorder import run_auditor
from fl_epe.canaries import CanaryScorer, CanarySet
from fl_epe.flower import CanaryAudit, InProcessGrid, LocalDp, sources
from fl_epe.flower.client_noise import ClientNoise
from fl_epe.models import Cnn, bind_parameters, one_thread
from fl_epe.seeding import generator
from fl_epe.simulation.flower_internals import quiet_flower, simulate_with_ray
from fl_epe.tasks.images import Digits

_BATCH, _BATCHES = 16, 2
_RAY_WORKERS = 2
_PARTS: tuple[tuple[object, str, str], ...] = (
    (None, "aggregate_train", "the strategy, for more replies"),
    (sources, "some_answers", "reading nine of the replies"),
    (CanarySet, "vectors", "making the canaries"),
    (sources, "make_replies", "making the replies"),
    (run_auditor, "score_round", "running ε, others taken out"),
    (EpsilonSoFar, "estimate", "running ε, estimate"),
    (CanaryScorer, "add", "scoring the delta, or keeping it"),
    (ClientNoise, "test", "testing the noise of clients"),
)
_PROMISE = LocalDp(epsilon=10, delta=1e-5, clip_norm=0.5)
_SCORED = 128  # canaries, beside every pair of rounds


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is measured.

    Attributes:
        clients: number of clients in every round, each on a node of its own.
        canaries: number of canaries that take part, once in ``rounds``.
        unobserved: number of unobserved canaries; ``None`` for the default of `CanaryAudit`.
        rounds: length of the run that the timed rounds are taken from.
        pairs: number of timed pairs of rounds.
        client_noise: whether clients add noise, and the audit knows what they promise.
    """

    clients: int
    canaries: int
    unobserved: int | None
    rounds: int
    pairs: int
    client_noise: bool = False

    def fedavg(self, extra: int) -> Strategy:
        """FedAvg, for any number of replies."""
        return FedAvg(min_available_nodes=self.clients)

    def fixed_clipping(self, extra: int) -> Strategy:
        """Fixed clipping for ``extra`` more replies, so that canaries replace no client."""
        return DifferentialPrivacyServerSideFixedClipping(
            self.fedavg(extra),
            noise_multiplier=0.1,
            clipping_norm=0.5,
            num_sampled_clients=self.clients + extra,
        )

    def audited(self, make: Callable[[int], Strategy]) -> CanaryAudit:
        """The strategy under audit, with a count of replies that includes a round's canaries."""
        return CanaryAudit(
            make(-(-self.canaries // self.rounds)),
            num_canaries=self.canaries,
            unobserved=self.unobserved,
            delta=1e-5,
            seed=1,
            rounds=self.rounds,
            client_noise=_PROMISE if self.client_noise else None,
        )


class Stopwatch:
    """Adds up the time spent in functions, by label."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = collections.defaultdict(float)

    @contextlib.contextmanager
    def on(self, owner: object, name: str, label: str) -> Iterator[None]:
        """Time the calls of ``owner.name`` while this lasts."""
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def timed(*values: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return inner(*values, **named)
            finally:
                self.seconds[label] += time.perf_counter() - began

        with mock.patch.object(owner, name, timed):
            yield


@dataclasses.dataclass(frozen=True)
class Timed:
    """Seconds of a round: in total, of the server, and of the labelled parts."""

    total: float
    server: float
    parts: dict[str, float]


class Player:
    """Leads a strategy through its rounds, one at a time."""

    def __init__(
        self,
        strategy: Strategy,
        inner: Strategy,
        grid: Grid,
        arrays: ArrayRecord,
    ):
        self._strategy, self._inner = strategy, inner
        self._grid, self._arrays = grid, arrays
        self._round = 0

    def play(self) -> Timed:
        """Play the next round."""
        self._round += 1
        watch = Stopwatch()
        with contextlib.ExitStack() as stack:
            for owner, name, label in _PARTS:
                stack.enter_context(watch.on(owner or self._inner, name, label))
            began = time.perf_counter()
            messages = self._strategy.configure_train(
                self._round, self._arrays, ConfigRecord(), self._grid
            )
            asked = time.perf_counter()
            replies = list(self._grid.send_and_receive(messages, timeout=3600))
            answered = time.perf_counter()
            errors = [
                reply.error.reason for reply in replies if reply.has_error()
            ]
            assert not errors, errors[0]
            arrays, _ = self._strategy.aggregate_train(self._round, replies)
            ended = time.perf_counter()
        assert arrays is not None
        self._arrays = arrays
        return Timed(
            ended - began, asked - began + ended - answered, watch.seconds
        )


def client_app(clients: int, *, noise: bool = False) -> ClientApp:
    """An app that trains the received model on two batches of real digits and sends it back."""
    norm = _PROMISE.clip_norm
    mod = LocalDpMod(norm, 2 * norm, _PROMISE.epsilon, _PROMISE.delta)
    app, task = (
        ClientApp(mods=[mod] if noise else []),
        Digits(num_clients=clients),
    )

    @app.train()
    def train(message: Message, context: Context) -> Message:
        data = task.client(int(context.node_config["partition-id"]))
        model = Cnn()
        model.load_state_dict(
            message.content.array_records["arrays"].to_torch_state_dict()
        )
        for layer in (model.dropout1, model.dropout2):
            layer.random = np.random.default_rng()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        order = torch.randperm(len(data)).repeat(_BATCH * _BATCHES)[
            : _BATCH * _BATCHES
        ]
        with one_thread():
            for batch in torch.split(order, _BATCH):
                optimizer.zero_grad()
                loss = (
                    task.loss(
                        model(data.inputs[batch]), data.targets[batch]
                    ).loss
                    / _BATCH
                )
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        metrics = MetricRecord(
            {"train_loss": loss.item(), "num-examples": len(order)}
        )
        content = RecordDict(
            {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
        )
        return Message(content, reply_to=message)

    return app


def initial_arrays() -> ArrayRecord:
    model = Cnn()
    bind_parameters(model, torch.from_numpy(Digits().initial(1)))
    return ArrayRecord(model.state_dict())


class Scoring:
    """The work at the end of a run: scoring all canaries against every delta and the final model.

    It is measured with some of the canaries, so that it fits beside every pair of rounds.
    """

    def __init__(self, setting: Setting) -> None:
        canaries = CanarySet(Digits().dim, _SCORED, 1)
        self._vectors = setting.rounds + 2
        self._tracker = CanaryScorer(canaries)
        self._deltas = generator(2).standard_normal(
            (4, canaries.dim), np.float32
        )
        settings = setting.audited(setting.fedavg).canary_settings
        whole = setting.canaries + settings.unobserved_beside(setting.canaries)
        self._factor = whole / _SCORED / setting.rounds

    def seconds(self) -> float:
        """Seconds of it for one round."""
        watch = Stopwatch()
        with watch.on(CanaryScorer, "flush", "scoring"):
            for t in range(self._vectors):
                self._tracker.add("mean", self._deltas[t % len(self._deltas)])
            self._tracker.flush()
        return self._factor * watch.seconds["scoring"]


def measure(grid: Grid, setting: Setting) -> None:
    settings = setting.audited(setting.fedavg).canary_settings
    print(
        f"{Digits().dim} parameters, {setting.clients} clients a round, {setting.canaries} + "
        f"{settings.unobserved_beside(setting.canaries)} canaries in {setting.rounds} rounds, "
        f"{setting.pairs} pairs of rounds",
        flush=True,
    )
    scoring = Scoring(setting)
    for name, make in (
        ("FedAvg", setting.fedavg),
        ("Fixed clipping", setting.fixed_clipping),
    ):
        plain = make(0)
        audit = setting.audited(make)
        players = [
            Player(plain, plain, grid, initial_arrays()),
            Player(audit, audit.strategy, grid, initial_arrays()),
        ]
        pairs = []
        for pair in range(-1, setting.pairs):  # the first one warms up
            first = pair % 2
            timed = {
                which: players[which].play() for which in (first, 1 - first)
            }
            later = scoring.seconds()
            if pair >= 0:
                timed[1].parts["scoring, deferred"] = later
                pairs.append((timed[0], timed[1]))
        show(name, pairs)


def show(name: str, pairs: list[tuple[Timed, Timed]]) -> None:
    later = np.array([b.parts["scoring, deferred"] for _, b in pairs])
    plain = np.array([a.total for a, _ in pairs])
    audited = np.array([b.total for _, b in pairs]) + later
    server = np.array([b.server - a.server for a, b in pairs]) + later
    print(f"\n{name}")
    print(f"    plain round    {spread(plain, '.2f', ' s')}")
    print(f"    audited round  {spread(audited, '.2f', ' s')}")
    print(
        f"    overhead       {spread(100 * (audited / plain - 1), '.1f', '%')}"
    )
    print(f"    the server's   {spread(100 * server / plain, '.1f', '%')}")
    shown = 0.0
    for label in (*(label for _, _, label in _PARTS), "scoring, deferred"):
        shares = np.array(
            [(b.parts[label] - a.parts[label]) / a.total for a, b in pairs]
        )
        seconds = np.median([b.parts[label] - a.parts[label] for a, b in pairs])
        shown += float(np.median(shares))
        print(
            f"    {label:<30}{1e3 * seconds:6.0f} ms {np.median(shares):7.2%}"
        )
    print(
        f"    {'all else':<39} {np.median(server / plain) - shown:7.2%}",
        flush=True,
    )


def spread(values: np.ndarray, form: str, unit: str = "") -> str:
    """Median, quartiles and range."""
    low, q1, middle, q3, high = (
        f"{x:{form}}{unit}"
        for x in np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
    )
    return f"{middle:>6}  (half of them {q1} – {q3}, all {low} – {high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--canaries", type=int, default=1000)
    parser.add_argument("--unobserved", type=int)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--client-noise", action="store_true")
    options = parser.parse_args()
    setting = Setting(
        options.clients,
        options.canaries,
        options.unobserved,
        options.rounds,
        options.pairs,
        options.client_noise,
    )
    quiet_flower()
    app = client_app(setting.clients, noise=setting.client_noise)
    if not options.ray:
        with InProcessGrid(app, setting.clients) as grid:
            measure(grid, setting)
        return
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        measure(grid, setting)

    ray = {
        "num_cpus": _RAY_WORKERS,
        "include_dashboard": False,
        "log_to_driver": False,
    }
    backend = {
        "init_args": ray,
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    simulate_with_ray(server, app, setting.clients, backend)


if __name__ == "__main__":
    main()
