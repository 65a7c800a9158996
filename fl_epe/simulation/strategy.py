"""`DPFedAvg`: DP-FedAvg with canaries, as a Flower strategy for `worker_app` nodes."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, Metadata, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fl_epe import schedules
from fl_epe.auditing import (
    AuditRecord,
    EpsilonEstimate,
    Mechanism,
    NullTally,
    Provenance,
    RoundFacts,
    RunningEstimate,
    installed_versions,
    record_from_scorer,
    scorer_with_null,
)
from fl_epe.canaries import SCORE_MEMORY, CanaryScorer, CanarySet
from fl_epe.config import RunConfig
from fl_epe.faults import FaultKind
from fl_epe.mechanism import ServerSGD, gaussian_noise, norm
from fl_epe.message_records import pack, read_only
from fl_epe.schedules import Cohort
from fl_epe.seeding import Seeds, generator
from fl_epe.simulation.checkpoint import SCORER, WATCHED
from fl_epe.simulation.messages import Order, PartialSum, RefusedError
from fl_epe.simulation.nodes import Directory
from fl_epe.simulation.round_log import RoundLog

logger = logging.getLogger(__name__)


class DPFedAvg(Strategy):
    """DP-FedAvg that schedules clients and canaries, and scores how well canaries are remembered.

    Each round it orders every node to train its share of the cohort, adds up the partial sums,
    adds noise with standard deviation ``z·C_t``, divides by the *expected* cohort size, and
    moves the model and the clip norm. Observed canaries are 0 … k−1; the unobserved ones after
    them are scored and never take part.

    Args:
        config: everything that decides the result.
        seeds: the random streams; fresh ones from the operating system by default.
        node_timeout: seconds to wait for nodes that hold all clients.
        score_memory: bytes for released means that wait to be scored, for independent canaries.
        client_sizes: examples of each client of a cohort, to balance the work of nodes that hold
            all clients; by default all are alike. No influence on the result.
    """

    def __init__(
        self,
        config: RunConfig,
        seeds: Seeds | None = None,
        *,
        node_timeout: float = 120.0,
        score_memory: int = SCORE_MEMORY,
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
        cohorts = list(config.client_schedule().cohorts(config.clients, rng))
        observed_ids = self._observed_ids()
        rng = generator(self.seeds.participation, 1)
        planned = schedules.presence(config.canary_schedule(), len(observed_ids), rng)
        self.log = RoundLog(cohorts, planned, observed_ids)
        self._clip_norm = self._clip_rule.init()
        self._orders: dict[int, Order] = {}
        self._sent: list[Metadata] = []  # their ids are known once they are sent
        self._theta: NDArray[np.float32] | None = None
        self._start: NDArray[np.float32] | None = None
        self._state: dict[str, NDArray[np.float64]] = {}
        self._scorer: CanaryScorer | None = None
        self._delta_dots: NDArray[np.float64] | None = None  # where deltas are scored
        self._rule = config.stop_rule()
        self._running: RunningEstimate | None = None  # where it is cheap, or there is a rule
        self._sketches: list[NDArray[np.float64]] = []  # of each round, where ε is watched

    @property
    def rounds_done(self) -> int:
        """Rounds aggregated so far."""
        return self.log.rounds_done

    def summary(self) -> None:
        """Log what will be done."""
        logger.info("DP-FedAvg with canaries: %s", self.config)

    def _observed_ids(self) -> NDArray[np.int64]:
        """Which canaries take part; the others are only scored."""
        if self.config.inclusion == "fixed":
            return np.arange(self.config.num_canaries)
        everyone = self.config.num_canaries + self.config.unobserved
        heads = generator(self.seeds.participation, 2).random(everyone) < 0.5
        return np.flatnonzero(heads)

    def _begin(self, theta: NDArray[np.float32]) -> CanaryScorer:
        if theta.ndim != 1 or theta.dtype != np.float32:
            raise ValueError(f"Expected a flat float32 model, got {theta.dtype} {theta.shape}.")
        self._start = theta
        self._state = self._optimizer.init(len(theta))
        canaries = self.canary_set(len(theta))
        self._scorer = scorer = scorer_with_null(canaries, self._score_memory)
        observed = len(canaries) if self.config.inclusion == "coin" else self.config.num_canaries
        null = NullTally(observed, scorer.others) if scorer.others else None
        if canaries.fast or self._rule is not None:  # it is shown the means: nothing to undo
            self._running = RunningEstimate(canaries, "mean", self._planned(), null)
        return self._scorer

    def canary_set(self, dim: int) -> CanarySet:
        """All canaries of the run, for a model of ``dim`` parameters."""
        count = self.config.num_canaries + self.config.unobserved
        return CanarySet(dim, count, self.seeds.canary, self.config.canary_kind)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One order to each node that holds somebody of this round's cohort."""
        theta = read_only(arrays["theta"])
        if self._scorer is None:
            self._begin(theta)
        if server_round == 1:
            self._directory.wait_for_all(grid)
        else:
            for fault in self._directory.refresh_until_some(grid):
                self.log.fault(*fault)
        self._theta = theta
        t = self.rounds_done
        self._orders = {
            share.node: self._order(theta, share.clients, share.canary_ids)
            for share in self._directory.share(self.log.cohorts[t], self.log.canary_ids(t))
        }
        model = ArrayRecord({"theta": arrays["theta"]})
        messages = [
            Message(order.encode(model), node, MessageType.TRAIN, group_id=str(t + 1))
            for node, order in self._orders.items()
        ]
        self._sent = [message.metadata for message in messages]
        return messages

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
            canary_kind=config.canary_kind,
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
        self.log.took_part([self._orders[node] for node in parts])
        clip_norm, (mean, dots) = self._clip_norm, self._release(list(parts.values()))
        theta = self._move(mean)
        rng = generator(self.seeds.noise, self.rounds_done, 1)
        voted = counts["cohort"]
        if self.config.canaries_vote:  # always clipped, as they are scaled far above the norm
            voted += sum(part.canaries for part in parts.values())
        self._clip_norm = self._clip_rule.update(clip_norm, counts["unclipped"], voted, rng)
        row = {**counts, "clip_norm": clip_norm, "delta_norm": norm(theta - self._theta)}
        self.log.close_round(row)
        if self._running is not None:
            self._running.note(mean, self.round_facts(), dots=dots)
            self._sketches.append(self._running.sketch)
            self._follow_null(dots, row["delta_norm"])
        shown = {name.replace("_", "-"): value for name, value in row.items()}
        return pack(theta=theta), MetricRecord({**shown, "canaries-seen": self.log.canaries_seen()})

    def _collect(self, replies: Iterable[Message]) -> dict[int, PartialSum]:
        """The good answers by node, in the order of the orders; every fault is counted once."""
        parts: dict[int, PartialSum] = {}
        asked = {
            sent.message_id: sent.dst_node_id
            for sent in self._sent
            if sent.message_id  # an in-process grid numbers copies
        }
        heard: set[int] = set()
        for reply in replies:
            # A SuperLink answers in the name of a node that died, under its own id.
            about, group = reply.metadata, reply.metadata.group_id
            node = asked.get(about.reply_to_message_id, about.src_node_id)
            if group and group != str(self.rounds_done + 1):
                self.log.fault(FaultKind.LATE, f"node {node}: this is its answer of round {group}")
                continue
            heard.add(node)
            try:
                part = self._read(node, reply)
            except RefusedError as error:
                self.log.fault(error.kind, f"node {node}: {error}")
                continue
            if node in parts:
                self.log.fault(FaultKind.TWICE, f"node {node}: it answered twice")
                continue
            parts[node] = part
            for fault in part.faults:
                self.log.fault(*fault)
        for node in self._orders.keys() - heard:
            self.log.fault(FaultKind.NO_ANSWER, f"node {node}: no answer in time")
        return {node: parts[node] for node in self._orders if node in parts}

    def _read(self, node: int, reply: Message) -> PartialSum:
        """What a node answers; raises a `RefusedError` if it cannot be used."""
        if reply.has_error():
            raise RefusedError(FaultKind.of_error(reply.error.code), str(reply.error.reason))
        if node not in self._orders:
            raise RefusedError(FaultKind.REFUSED, "nobody asked it")
        part = PartialSum.decode(reply.content)
        part.check(self._orders[node])
        return part

    def _count(self, parts: list[PartialSum]) -> dict[str, float]:
        examples = sum(part.examples for part in parts)
        loss = sum(part.loss_sum for part in parts)
        correct = sum(part.correct for part in parts)
        clients = sum(part.clients for part in parts)
        return {
            "absent": self.log.expected() - clients - sum(part.canaries for part in parts),
            "cohort": clients,
            "unclipped": sum(part.unclipped for part in parts),
            "loss": loss / examples if examples else np.nan,
            "accuracy": correct / examples if examples else np.nan,
        }

    def _release(
        self, parts: list[PartialSum]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """The noisy mean of the round, and what the scorer says of it."""
        assert self._theta is not None  # noqa: S101
        assert self._scorer is not None  # noqa: S101
        dim, n = len(self._theta), self.config.cohort_size
        rng = generator(self.seeds.noise, self.rounds_done, 0)
        total = np.zeros(dim)
        for part in parts:
            total += part.total()
        total += gaussian_noise(rng, dim, self._noise_multiplier * self._clip_norm)
        total /= n
        mean = total
        dots = self._scorer.add("mean", mean)
        if self.config.full_knowledge:
            clients = sum((part.clients_sum for part in parts), np.zeros(dim))
            self._scorer.add("residual", mean - clients / n)
        return mean, dots

    def _move(self, mean: NDArray[np.float64]) -> NDArray[np.float32]:
        assert self._theta is not None  # noqa: S101
        assert self._scorer is not None  # noqa: S101
        self._state, step = self._optimizer.update(self._state, mean)
        if self._optimizer.weights(1) is None:  # the deltas do not follow from the means
            self._delta_dots = self._scorer.add("delta", step)
        step += self._theta
        return step.astype(np.float32)

    def _follow_null(self, dots: NDArray[np.float64] | None, delta_norm: float) -> None:
        """Note what canaries that took no part score in the round, for the maximum over rounds."""
        assert self._scorer is not None  # noqa: S101
        null = None if self._running is None else self._running.null
        if null is None or dots is None:
            return
        dim, first = self._scorer.canaries.dim, len(self._scorer.canaries)
        if self._delta_dots is not None:
            null.add_delta(self._delta_dots[first:], delta_norm, dim)
        elif isinstance(self._optimizer, ServerSGD):
            null.add_step(dots[first:], self._optimizer, delta_norm, dim)

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
        if self._scorer is None or self._start is None or not self.rounds_done:
            raise ValueError("Expected a record after at least one round.")
        ids, presence = self.log.observed_ids, self.log.presence[: self.rounds_done]
        if self._rule is not None and self.rounds_done < self.config.rounds:
            seen = presence.any(axis=0)  # a canary whose turn did not come is unobserved
            ids, presence = ids[seen], presence[:, seen]
        return record_from_scorer(
            self._scorer,
            ids,
            start=self._start,
            final=read_only(arrays["theta"]).astype(np.float64),
            delta_norms=self.log.series("delta_norm"),
            presence=presence,
            delta=self.config.target_delta,
            mechanism=self._mechanism(),
            clients=self.log.clients(),
            metrics={**(metrics or {}), **self.log.metrics()},
            provenance=Provenance(
                self.config.to_dict(),
                self.seeds.to_dict(),
                self.config.canary_kind,
                installed_versions(),
                tuple(self.log.faults),
                dict(self.log.fault_counts),
            ),
            null=None if self._running is None else self._running.null,
        )

    def _mechanism(self) -> Mechanism:
        config = self.config
        return Mechanism(
            cohort_size=config.cohort_size,
            noise_multiplier=config.noise_multiplier,
            sum_noise_multiplier=config.sum_noise_multiplier(),
            participation=config.canary_schedule().kind,
            canary_participations=float(config.canary_participations),
            server=dataclasses.asdict(self._optimizer) | {"name": config.server_optimizer},
            clip_norms=self.log.series("clip_norm"),
            inclusion=config.inclusion,
        )

    # What decides whether a run stops early.

    def watched(self) -> EpsilonEstimate | None:
        """ε after the rounds done, at the target δ, where it is cheap or a rule asks for it.

        Its 95% interval holds at all rounds at once; ``None`` before two canaries took part.
        """
        return None if self._running is None else self._running.epsilon(self.config.target_delta)

    def may_stop(self) -> bool:
        """Whether the rule `RunConfig.stop_when` is met."""
        found = self.watched()
        return (
            found is not None and self._rule is not None and self._rule.met(found.low, found.high)
        )

    def more_canaries(self) -> float:
        """Participations more that would show on which side of the rule's limit ε is."""
        if self._running is None or self._rule is None:
            return math.inf
        return self._running.more_canaries(self._rule.limit, self.config.target_delta)

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
        return RunningEstimate(self.canary_set(dim), known, self._planned())

    def _planned(self) -> float:
        """Participations of all canaries together, on average where the schedule is random."""
        return len(self.log.observed_ids) * self.config.canary_schedule().participations()

    def round_facts(self) -> RoundFacts:
        """What happened in the round that was aggregated last."""
        t, expected = self.rounds_done - 1, self.config.cohort_size
        clip_norm = self.log.history["clip_norm"][t]
        return RoundFacts(
            present=self.log.canary_ids(t).tolist(),
            contribution=clip_norm / expected,
            clip_norm=clip_norm,
            replies=expected,
        )

    def audit_record(self, theta: NDArray[np.floating]) -> AuditRecord:
        """See `record`, for the final model as a vector."""
        return self.record(pack(theta=theta))

    def scored_series(self) -> tuple[str, ...]:
        """Names of the vectors that the scorer is shown in each round."""
        more = ("residual",) if self.config.full_knowledge else ()
        return ("mean", *more, *(("delta",) if self._optimizer.weights(1) is None else ()))

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything but the seeds that a resumed run needs, as named arrays."""
        if self._scorer is None or self._start is None:
            return {}
        out = self.log.state() | {"clip_norm": np.array(self._clip_norm), "start": self._start}
        out |= {f"optimizer.{name}": value for name, value in self._state.items()}
        if self._running is not None:
            running = self._running
            out |= {WATCHED + "sums": running.sums, WATCHED + "unit": np.array(running.unit)}
            out[WATCHED + "variance"] = running.variance
            out[WATCHED + "sketches"] = np.array(self._sketches, np.float32)
            null = running.null
            out |= {} if null is None else {WATCHED + n: v for n, v in null.state().items()}
        return out | {SCORER + name: value for name, value in self._scorer.state().items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `state` returned; `Strategy.start` then runs the rounds that are left."""
        scorer = self._begin(state["start"])
        self.log.restore(state)
        self._clip_norm = float(state["clip_norm"])
        self._state = _under(state, "optimizer.")
        if self._running is not None:
            nothing = np.zeros((self.rounds_done, len(self._running.sketch)))
            sketches = np.asarray(state.get(WATCHED + "sketches", nothing), np.float64)
            self._sketches = list(sketches)
            self._running.restore(
                state[WATCHED + "sums"],
                float(state[WATCHED + "unit"]),
                variance=state.get(WATCHED + "variance"),  # older checkpoints have none
                rounds=[(row, self.log.canary_ids(t).tolist()) for t, row in enumerate(sketches)],
            )
            if self._running.null is not None:
                self._running.null.restore(_under(state, WATCHED))
        scorer.restore(_under(state, SCORER))


def _under(state: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {
        key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)
    }
