"""`DPFedAvg`: DP-FedAvg with canaries, as a Flower strategy for `worker_app` nodes."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fl_epe.auditing import AuditRecord, RoundFacts, RunningEstimate, installed_versions
from fl_epe.canaries import CanaryScorer, CanarySet
from fl_epe.config import RunConfig
from fl_epe.mechanism import ServerSGD, gaussian_noise, norm
from fl_epe.schedules import Cohort, presence
from fl_epe.seeding import Seeds, generator
from fl_epe.simulation.messages import Order, PartialSum, pack
from fl_epe.simulation.nodes import Directory

logger = logging.getLogger(__name__)

_PER_ROUND = ("clip_norm", "delta_norm", "absent", "cohort", "unclipped", "loss", "accuracy")
_FAULTS_KEPT = 100


class DPFedAvg(Strategy):
    """DP-FedAvg that schedules clients and canaries, and tracks how well canaries are remembered.

    Each round it orders every node to train its share of the cohort, adds up the partial sums,
    adds noise with standard deviation ``z·C_t``, divides by the *expected* cohort size, and
    moves the model and the clip norm. Observed canaries are 0 … k−1; the unobserved ones after
    them are tracked and never take part.

    Args:
        config: everything that decides the result.
        seeds: the random streams; fresh ones from the operating system by default.
        node_timeout: seconds to wait for nodes that hold all clients.
        score_memory: memory for model deltas that wait to be scored.
        client_sizes: examples of each client of a cohort, to balance the work of nodes that hold
            all clients; by default all are alike. No influence on the result.
    """

    def __init__(
        self,
        config: RunConfig,
        seeds: Seeds | None = None,
        *,
        node_timeout: float = 120.0,
        score_memory: int = 384 << 20,
        client_sizes: Callable[[Cohort], NDArray[Any]] | None = None,
    ) -> None:
        self.config = config
        self.seeds = seeds or Seeds.derive(None)
        self._score_memory = score_memory
        self._directory = Directory(config.clients, node_timeout, client_sizes)
        self._optimizer = config.optimizer()
        self._clip_rule = config.clip_rule()
        self._noise_multiplier = config.sum_noise_multiplier()
        rng = generator(self.seeds.participation, 0)
        self._cohorts = list(config.client_schedule().cohorts(config.clients, rng))
        self.observed_ids, self.unobserved_ids = self._include()
        rng = generator(self.seeds.participation, 1)
        self.presence = presence(config.canary_schedule(), len(self.observed_ids), rng)
        self.rounds_done = 0
        self._clip_norm = self._clip_rule.init()
        self.history: dict[str, list[float]] = {name: [] for name in _PER_ROUND}
        self._faults: list[str] = []
        self._orders: dict[int, Order] = {}
        self._theta: NDArray[np.float32] | None = None
        self._start: NDArray[np.float32] | None = None
        self._state: dict[str, NDArray[np.float64]] = {}
        self._tracker: CanaryScorer | None = None

    def summary(self) -> None:
        """Log what will be done."""
        logger.info("DP-FedAvg with canaries: %s", self.config)

    def _include(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which canaries take part and which are only tracked."""
        everyone = np.arange(self.config.num_canaries + self.config.unobserved)
        if self.config.inclusion == "fixed":
            return everyone[: self.config.num_canaries], everyone[self.config.num_canaries :]
        heads = generator(self.seeds.participation, 2).random(len(everyone)) < 0.5
        return everyone[heads], everyone[~heads]

    def _begin(self, theta: NDArray[np.float32]) -> CanaryScorer:
        if theta.ndim != 1 or theta.dtype != np.float32:
            raise ValueError(f"Expected a flat float32 model, got {theta.dtype} {theta.shape}.")
        self._start = theta
        self._state = self._optimizer.init(len(theta))
        self._tracker = CanaryScorer(self.canary_set(len(theta)), self._score_memory)
        return self._tracker

    def canary_set(self, dim: int) -> CanarySet:
        """All canaries of the run, for a model of ``dim`` parameters."""
        return CanarySet(dim, self.config.num_canaries + self.config.unobserved, self.seeds.canary)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One order to each node that holds somebody of this round's cohort."""
        theta = arrays["theta"].numpy()
        if self._tracker is None:
            self._begin(theta)
        if server_round == 1:
            self._directory.wait_for_all(grid)
        else:
            self._directory.refresh(grid)
        self._theta = theta
        t = self.rounds_done
        self._orders = {
            share.node: self._order(theta, share.clients, share.canary_ids)
            for share in self._directory.share(
                self._cohorts[t], self.observed_ids[self.presence[t]]
            )
        }
        return [
            Message(order.encode(), node, MessageType.TRAIN, group_id=str(t + 1))
            for node, order in self._orders.items()
        ]

    def _order(
        self, theta: NDArray[np.float32], clients: list[int], canary_ids: list[int]
    ) -> Order:
        config = self.config
        return Order(
            theta=theta,
            round_number=self.rounds_done + 1,
            clip_norm=self._clip_norm,
            clients=clients,
            canary_ids=canary_ids,
            canary_seed=self.seeds.canary,
            num_canaries=config.num_canaries + config.unobserved,
            local_seed=self.seeds.local,
            local_epochs=config.local_epochs,
            local_batch_size=config.local_batch_size,
            local_learning_rate=config.local_learning_rate,
            separate=config.full_knowledge,
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add up, add noise, move the model and the clip norm; what is missing counts as zero."""
        assert self._theta is not None  # noqa: S101 - configure_train came first
        parts = self._collect(replies)
        counts = self._count(list(parts.values()))
        self._note_participation(parts)
        clip_norm, mean = self._clip_norm, self._release(list(parts.values()))
        theta = self._move(mean)
        rng = generator(self.seeds.noise, self.rounds_done, 1)
        voted = counts["cohort"]
        if self.config.canaries_vote:  # always clipped, as they are scaled far above the norm
            voted += sum(part.canaries for part in parts.values())
        self._clip_norm = self._clip_rule.update(clip_norm, counts["unclipped"], voted, rng)
        row = {**counts, "clip_norm": clip_norm, "delta_norm": norm(theta - self._theta)}
        for name in _PER_ROUND:
            self.history[name].append(row[name])
        self.rounds_done += 1
        shown = {name.replace("_", "-"): value for name, value in row.items()}
        return pack(theta=theta), MetricRecord({**shown, "canaries-seen": self.canaries_seen()})

    def canaries_seen(self) -> int:
        """How many observed canaries have taken part so far."""
        return int(self.presence[: self.rounds_done].any(axis=0).sum())

    def _collect(self, replies: Iterable[Message]) -> dict[int, PartialSum]:
        """The good answers by node, in the order of the orders."""
        parts: dict[int, PartialSum] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    raise ValueError(reply.error.reason)
                part = PartialSum.decode(reply.content)
                part.check(self._orders[node])
            except (ValueError, KeyError) as error:
                self._fault(f"node {node}: {error}")
                continue
            parts[node] = part
            for fault in part.faults:
                self._fault(fault)
        for node in self._orders.keys() - parts.keys():
            self._fault(f"node {node}: no usable answer")
        return {node: parts[node] for node in self._orders if node in parts}

    def _note_participation(self, nodes: Iterable[int]) -> None:
        """Who took part: those ordered from nodes whose answer could be used.

        Clients that such a node lost one by one are among the faults.
        """
        orders = [self._orders[node] for node in nodes]
        clients = [client for order in orders for client in order.clients]
        self._cohorts[self.rounds_done] = np.sort(np.array(clients, np.int64))
        self.presence[self.rounds_done] = False
        for order in orders:
            self.presence[self.rounds_done] |= np.isin(self.observed_ids, order.canary_ids)

    def _fault(self, text: str) -> None:
        logger.warning("Round %d, %s", self.rounds_done + 1, text)
        if len(self._faults) < _FAULTS_KEPT:
            self._faults.append(f"round {self.rounds_done + 1}, {text}")

    def _count(self, parts: list[PartialSum]) -> dict[str, float]:
        t = self.rounds_done
        expected = len(self._cohorts[t]) + int(self.presence[t].sum())
        examples = sum(part.examples for part in parts)
        loss = sum(part.loss_sum for part in parts)
        correct = sum(part.correct for part in parts)
        clients = sum(part.clients for part in parts)
        return {
            "absent": expected - clients - sum(part.canaries for part in parts),
            "cohort": clients,
            "unclipped": sum(part.unclipped for part in parts),
            "loss": loss / examples if examples else np.nan,
            "accuracy": correct / examples if examples else np.nan,
        }

    def _release(self, parts: list[PartialSum]) -> NDArray[np.float64]:
        """The noisy mean of the round; tracks it."""
        assert self._theta is not None  # noqa: S101
        assert self._tracker is not None  # noqa: S101
        dim, n = len(self._theta), self.config.cohort_size
        total = sum((part.total() for part in parts), np.zeros(dim))
        rng = generator(self.seeds.noise, self.rounds_done, 0)
        mean = (total + gaussian_noise(rng, dim, self._noise_multiplier * self._clip_norm)) / n
        self._tracker.add("mean", mean)
        if self.config.full_knowledge:
            clients = sum((part.clients_sum for part in parts), np.zeros(dim))
            self._tracker.add("residual", mean - clients / n)
        return mean

    def _move(self, mean: NDArray[np.float64]) -> NDArray[np.float32]:
        assert self._theta is not None  # noqa: S101
        assert self._tracker is not None  # noqa: S101
        self._state, step = self._optimizer.update(self._state, mean)
        theta = (self._theta + step).astype(np.float32)
        if self._optimizer.weights(1) is None:  # the deltas do not follow from the means
            self._tracker.add("delta", step)
        return theta

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: the model is evaluated on the server."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing: the model is evaluated on the server."""
        return None

    def record(
        self, arrays: ArrayRecord, metrics: Mapping[str, NDArray[np.float64]] | None = None
    ) -> AuditRecord:
        """What the run leaves behind, scored against the final model ``arrays``.

        Args:
            arrays: the final model, as `Strategy.start` returned it.
            metrics: more series to keep, such as those of an evaluation on the server.

        Raises:
            ValueError: before the first round.
        """
        if self._tracker is None or self._start is None or not self.rounds_done:
            raise ValueError("Expected a record after at least one round.")
        theta = arrays["theta"].numpy()
        self._tracker.add("final", theta)
        self._tracker.add("displacement", theta.astype(np.float64) - self._start)
        return _make_record(self, self._tracker, dict(metrics or {}))

    # What `CanaryAudit` asks of a strategy with canaries of its own.

    @property
    def num_canaries(self) -> int:
        """How many canaries take part."""
        return self.config.num_canaries

    def use_canary_seed(self, seed: int) -> None:
        """Draw the canaries from this seed instead; before the first round."""
        self.seeds = dataclasses.replace(self.seeds, canary=seed)

    def running_estimate(self, dim: int) -> RunningEstimate:
        """ε after any round, for a model of ``dim`` parameters; no round is in it yet."""
        server = self._optimizer
        known = server if isinstance(server, ServerSGD) else self.config.server_optimizer
        return RunningEstimate(self.canary_set(dim), known)

    def round_facts(self) -> RoundFacts:
        """What happened in the round that was aggregated last."""
        t, expected = self.rounds_done - 1, self.config.cohort_size
        clip_norm = self.history["clip_norm"][t]
        return RoundFacts(
            present=self.observed_ids[self.presence[t]].tolist(),
            contribution=clip_norm / expected,
            clip_norm=clip_norm,
            replies=expected,
        )

    def audit_record(self, theta: NDArray[np.floating]) -> AuditRecord:
        """See `record`, for the final model as a vector."""
        return self.record(pack(theta=theta))

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything but the seeds that a resumed run needs, as named arrays."""
        if self._tracker is None or self._start is None:
            return {}
        out: dict[str, NDArray[Any]] = {
            "rounds_done": np.array(self.rounds_done),
            "clip_norm": np.array(self._clip_norm),
            "start": self._start,
            "faults": np.array(self._faults, dtype=np.str_),
            "presence": self.presence,
            "client_ids": np.concatenate(self._cohorts),
            "client_offsets": self._offsets(),
        }
        out |= {f"history.{name}": np.array(values) for name, values in self.history.items()}
        out |= {f"optimizer.{name}": value for name, value in self._state.items()}
        return out | {f"tracker.{name}": value for name, value in self._tracker.state().items()}

    def _offsets(self) -> NDArray[np.int64]:
        return np.cumsum([0, *map(len, self._cohorts)])

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `state` returned; `Strategy.start` then runs the rounds that are left."""
        tracker = self._begin(state["start"])
        self.rounds_done = int(state["rounds_done"])
        self._clip_norm = float(state["clip_norm"])
        self.presence = state["presence"]
        self._cohorts = np.split(state["client_ids"], state["client_offsets"][1:-1])
        self._faults = [str(fault) for fault in state["faults"]]
        self.history = {name: state[f"history.{name}"].tolist() for name in _PER_ROUND}
        self._state = _under(state, "optimizer.")
        tracker.restore(_under(state, "tracker."))


def _under(state: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {
        key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)
    }


def _make_record(
    strategy: DPFedAvg, tracker: CanaryScorer, metrics: dict[str, NDArray[np.float64]]
) -> AuditRecord:
    config = strategy.config
    ids = {"observed": strategy.observed_ids, "unobserved": strategy.unobserved_ids}
    history = {name: np.array(values) for name, values in strategy.history.items()}
    rounds = strategy.rounds_done
    cohorts = strategy._cohorts[:rounds]
    residual_norms = tracker.norms("residual")
    server = dataclasses.asdict(config.optimizer()) | {"name": config.server_optimizer}
    return AuditRecord(
        dim=tracker.canaries.dim,
        delta=config.target_delta,
        cohort_size=config.cohort_size,
        noise_multiplier=config.noise_multiplier,
        sum_noise_multiplier=config.sum_noise_multiplier(),
        participation=config.canary_schedule().kind,
        canary_participations=config.canary_participations,
        server=server,
        inclusion=config.inclusion,
        observed_ids=ids["observed"],
        unobserved_ids=ids["unobserved"],
        presence=strategy.presence[:rounds],
        clip_norms=history["clip_norm"],
        mean_norms=tracker.norms("mean"),
        delta_norms=history["delta_norm"],
        final_norm=float(tracker.norms("final")[-1]),
        displacement_norm=float(tracker.norms("displacement")[-1]),
        client_ids=np.concatenate(cohorts),
        client_offsets=strategy._offsets()[: rounds + 1],
        absent=history["absent"].astype(np.int64),
        metrics=metrics
        | {
            "train_loss": history["loss"],
            "train_accuracy": history["accuracy"],
            "unclipped": history["unclipped"],
            "cohort": history["cohort"],
        },
        config=config.to_dict(),
        seeds=strategy.seeds.to_dict(),
        versions=installed_versions(),
        faults=tuple(strategy._faults),
        residual_norms=residual_norms if len(residual_norms) else None,
        **tracker.by_side(ids),
    )
