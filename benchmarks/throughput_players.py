"""The variants that `throughput.py` compares, each in a process of its own."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from throughput_models import BATCH, Setting, examples

_RATE, _CLIP, _NOISE = 0.05, 0.5, 0.1
_WORKERS = 2


def descend(net: Any, setting: Setting, client: int) -> float:
    """Train with plain SGD on a client's batches; returns the last loss."""
    optimizer = torch.optim.SGD(
        [p for p in net.parameters() if p.requires_grad], lr=_RATE
    )
    x, y = examples(setting, client)
    for part in torch.split(torch.randperm(len(x)), BATCH):
        optimizer.zero_grad()
        loss = net.loss(x[part], y[part])
        loss.backward()
        optimizer.step()
    return float(loss.item())


# The variants. Each reads a line from standard input for each round, and prints its seconds.


def serve(play: Callable[[], None]) -> None:
    for _ in sys.stdin:
        began = time.perf_counter()
        play()
        print("seconds", time.perf_counter() - began, flush=True)


def lead(strategy: Any, grid: Any, arrays: Any) -> None:
    """Play rounds of a Flower strategy, one for each line of standard input."""
    from flwr.app import ConfigRecord

    state = {"arrays": arrays, "round": 0}

    def play() -> None:
        state["round"] += 1
        messages = strategy.configure_train(
            state["round"], state["arrays"], ConfigRecord(), grid
        )
        replies = list(grid.send_and_receive(messages, timeout=3600))
        assert not any(reply.has_error() for reply in replies), replies[0].error
        state["arrays"], _ = strategy.aggregate_train(state["round"], replies)

    serve(play)


def play_ours(setting: Setting) -> None:
    from fl_epe.config import RunConfig
    from fl_epe.flower import DPFedAvg, InProcessGrid, worker_app
    from fl_epe.messages import pack
    from fl_epe.seeding import Seeds
    from fl_epe.simulation.flower_internals import quiet_flower

    quiet_flower()
    task = own_task(setting) if setting.own else synthetic_task(setting)
    config = RunConfig(
        clients=setting.clients,
        rounds=100 * setting.clients,
        clients_per_round=setting.cohort,
        num_canaries=2,
        canary_participations=1,
        unobserved=0,
        noise_multiplier=_NOISE,
        clipping="fixed",
        clip_norm=_CLIP,
        local_epochs=1,
        local_batch_size=BATCH,
        local_learning_rate=_RATE,
    )
    strategy = DPFedAvg(config, Seeds.derive(1), client_sizes=task.sizes)
    with InProcessGrid(worker_app(task, everyone=True), _WORKERS) as grid:
        lead(strategy, grid, pack(theta=task.initial(1)))


def synthetic_task(setting: Setting) -> Any:
    from fl_epe.models import Cnn, Lstm
    from fl_epe.tasks import ClientData, LossSum, Task
    from fl_epe.tasks.losses import cross_entropy

    @dataclasses.dataclass(frozen=True)
    class MadeUp(Task):
        """The examples above for our models."""

        num_clients: int = setting.clients

        def model(self) -> torch.nn.Module:
            return Cnn() if setting.model == "cnn" else Lstm()

        def client(self, client_id: int) -> ClientData:
            return ClientData(*examples(setting, client_id))

        def held_out(self) -> ClientData:
            return self.client(0)

        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> LossSum:
            return cross_entropy(
                outputs, targets, -100 if setting.model == "cnn" else 0
            )

    return MadeUp()


def own_task(setting: Setting) -> Any:
    """A task as users make it of their model and their table of rows."""
    from datasets import Dataset

    from fl_epe.tasks import from_datasets

    parts = [examples(setting, client) for client in range(setting.clients)]
    table = {
        "user": np.repeat(np.arange(setting.clients), setting.batches * BATCH)
    }
    table["x"], table["y"] = (
        torch.cat(column).numpy() for column in zip(*parts, strict=True)
    )
    rows = Dataset.from_dict(table)
    return from_datasets(
        setting.net,
        rows,
        inputs="x",
        targets="y",
        partition="by:user",
        held_out=rows.select(range(BATCH)),
    )


def play_loop(setting: Setting) -> None:
    net = setting.net()
    parameters: list[torch.Tensor] = [
        p for p in net.parameters() if p.requires_grad
    ]
    order = np.random.default_rng(1)

    def play() -> None:
        start = [p.detach().clone() for p in parameters]
        total = [torch.zeros_like(p) for p in start]
        for client in order.choice(
            setting.clients, setting.cohort, replace=False
        ):
            descend(net, setting, int(client))
            with torch.no_grad():
                delta = [
                    p - before
                    for p, before in zip(parameters, start, strict=True)
                ]
                length = torch.linalg.vector_norm(
                    torch.stack([part.norm() for part in delta])
                )
                torch._foreach_add_(
                    total, delta, alpha=min(1.0, _CLIP / float(length))
                )
                torch._foreach_copy_(parameters, start)
        with torch.no_grad():
            for parameter, part in zip(parameters, total, strict=True):
                part += torch.randn_like(part) * _NOISE * _CLIP
                parameter.add_(part, alpha=1 / setting.cohort)

    serve(play)


def play_flower(setting: Setting) -> None:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import (
        DifferentialPrivacyServerSideFixedClipping,
        FedAvg,
    )

    from fl_epe.simulation.flower_internals import (
        quiet_flower,
        simulate_with_ray,
    )

    quiet_flower()
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        net = setting.net()
        net.load_state_dict(
            message.content.array_records["arrays"].to_torch_state_dict()
        )
        loss = descend(net, setting, int(context.node_config["partition-id"]))
        metrics = MetricRecord(
            {"train_loss": loss, "num-examples": setting.batches * BATCH}
        )
        content = RecordDict(
            {"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}
        )
        return Message(content, reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        share = setting.cohort / setting.clients
        inner = FedAvg(
            fraction_train=share,
            fraction_evaluate=0,
            min_available_nodes=setting.clients,
        )
        strategy = DifferentialPrivacyServerSideFixedClipping(
            inner,
            noise_multiplier=_NOISE,
            clipping_norm=_CLIP,
            num_sampled_clients=setting.cohort,
        )
        lead(strategy, grid, ArrayRecord(setting.net().state_dict()))

    ray = {
        "num_cpus": _WORKERS,
        "include_dashboard": False,
        "log_to_driver": False,
    }
    backend = {
        "init_args": ray,
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    simulate_with_ray(server, client, setting.clients, backend)


def play_pfl(setting: Setting) -> None:
    names = "aggregate.simulate algorithm.base algorithm.federated_averaging callback.base data"
    names += (
        " data.dataset hyperparam.base model.pytorch privacy.gaussian_mechanism"
    )
    names += " privacy.privacy_mechanism metrics data.sampling"
    pfl: Any = {
        name: importlib.import_module(f"pfl.{name}") for name in names.split()
    }
    net = setting.net()

    class Turns(pfl["callback.base"].TrainingProcessCallback):  # type: ignore[misc]
        """A round for each line of standard input."""

        def on_train_begin(self, *, model: Any) -> Any:
            sys.stdin.readline()
            self.began = time.perf_counter()
            return pfl["metrics"].Metrics()

        def after_central_iteration(self, *_: Any, **__: Any) -> Any:
            print("seconds", time.perf_counter() - self.began, flush=True)
            over = not sys.stdin.readline()
            self.began = time.perf_counter()
            return over, pfl["metrics"].Metrics()

    def dataset(client: int) -> Any:
        return pfl["data.dataset"].Dataset(
            raw_data=list(examples(setting, client))
        )

    sampler = pfl["data.sampling"].MinimizeReuseUserSampler(
        range(setting.clients)
    )
    data = pfl["data"].FederatedDataset(dataset, sampler)
    noise = pfl["privacy.gaussian_mechanism"].GaussianMechanism(_CLIP, _NOISE)
    central = pfl["privacy.privacy_mechanism"].CentrallyAppliedPrivacyMechanism(
        noise
    )
    pfl["algorithm.federated_averaging"].FederatedAveraging().run(
        pfl["algorithm.base"].NNAlgorithmParams(
            10**9, 10**9, setting.cohort, None
        ),
        pfl["aggregate.simulate"].SimulatedBackend(data, data, [central]),
        pfl["model.pytorch"].PyTorchModel(
            net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0)
        ),
        pfl["hyperparam.base"].NNTrainHyperParams(
            local_batch_size=BATCH,
            local_num_epochs=1,
            local_learning_rate=_RATE,
        ),
        callbacks=[Turns()],
    )


def play_loop_of_one_thread(setting: Setting) -> None:
    torch.set_num_threads(1)
    play_loop(setting)


_PLAYERS: dict[str, Callable[[Setting], None]] = {
    "ours": play_ours,
    "loop": play_loop,
    "loop 1": play_loop_of_one_thread,
    "Flower": play_flower,
    "pfl": play_pfl,
}


if __name__ == "__main__":
    _PLAYERS[sys.argv[1]](Setting(**json.loads(sys.argv[2])))
