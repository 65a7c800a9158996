"""`DPFedAvg`: `fl_epe.simulation.dp_fedavg` as a Flower strategy for `worker_app` nodes."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    Metadata,
    MetricRecord,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_epe import auditing
from fl_epe.archive import add_prefix, select_prefix
from fl_epe.checks import Floats, Floats32, NamedArrays
from fl_epe.config import RunConfig
from fl_epe.mechanism import ServerSGD
from fl_epe.messages import read_only, share
from fl_epe.noise import RUN_LEVEL, NoiseHealth
from fl_epe.schedules import Cohort
from fl_epe.seeding import Seeds
from fl_epe.simulation import dp_fedavg
from fl_epe.simulation.messages import (
    TrainInstruction,
    add_up_and_free,
    collect,
)
from fl_epe.simulation.node_registry import NodeRegistry
from fl_epe.simulation.round_log import METRICS, RoundLog

logger = logging.getLogger(__name__)

# Seconds to wait for nodes: before the first round until they hold all clients, and before other
# rounds until they hold one.
_WAIT_FOR_NODES = 600.0


class DPFedAvg(Strategy):
    """DP-FedAvg that schedules clients and canaries, and measures the leakage of canaries.

    In each round it sends every node an instruction to train its part of the cohort, adds up
    the partial sums, and takes the next step of `fl_epe.simulation.dp_fedavg`. Observed
    canaries are 0 … k−1; the unobserved ones after them are scored and never take part. If coins
    decide which canaries are observed, they can be any of them.
    `fl_epe.config.RunConfig` explains how the canaries' rounds are drawn.

    Args:
        config: all settings that determine the result.
        seeds: the seeds of the random streams; by default from the operating system.
        client_sizes: a function of a cohort that gives the number of examples of each client,
            to balance the work of nodes that hold all clients; by default all have the same. It
            does not change the result.

    Attributes:
        log: the participants of each round, and the faults.
        auditor: the auditor that scores the canaries.
    """

    # `CanaryAudit` refuses strategies with this mark.
    audits_itself = True

    def __init__(
        self,
        config: RunConfig,
        seeds: Seeds | None = None,
        *,
        client_sizes: Callable[[Cohort], np.ndarray] | None = None,
    ) -> None:
        self.config = config
        self.seeds = seeds or Seeds.derive(None)
        self._nodes = NodeRegistry(
            config.clients, _WAIT_FOR_NODES, client_sizes
        )
        self.log = RoundLog(dp_fedavg.draw_plan(config, self.seeds))
        self._instructions: dict[int, TrainInstruction] = {}
        # The metadata of a round's messages, which get their ids when they are sent.
        self._sent: list[Metadata] = []
        self._state: dp_fedavg.ServerState | None = None
        self._initial_theta: Floats32 = np.empty(0, np.float32)
        self._noise_health = NoiseHealth(level=RUN_LEVEL)
        # The participation law of the client whose ε is reported.
        self._law = config.client_schedule().law(config.clients)
        # With hidden rounds, ε is that of a client that takes part like a canary.
        if self._law.hidden:
            self._law = config.canary_schedule().law(config.clients)
        # Without canaries, two are scored, as the auditor needs them, but none takes part.
        self._num_canaries = max(self.log.canaries, 2)
        self.auditor = self._new_auditor()

    def _new_auditor(self) -> auditing.RunAuditor:
        config = self.config
        log = self.log
        # With coins, any canary may be observed.
        num_observed = len(log.observed_ids)
        if config.by_coin:
            num_observed = log.canaries
        num_observed = max(num_observed, 2)
        server: ServerSGD | str = config.server_optimizer
        optimizer = config.optimizer()
        if isinstance(optimizer, ServerSGD):
            server = optimizer
        strategy = config.strategy()
        reach = 0 if strategy is None else strategy.reach
        # Canaries of other kinds would have to be generated again in each round.
        is_fast = config.canary_kind == "rotation"
        return auditing.RunAuditor(
            num_observed,
            self._num_canaries - num_observed,
            seed=self.seeds.canary,
            delta=config.target_delta,
            server=server,
            planned=float(log.presence.sum()) or None,
            client=self._law,
            kind=config.canary_kind,
            series=dp_fedavg.released_series(config),
            follow=is_fast or config.stop_when is not None,
            window=max(auditing.WINDOW, reach),
            faults=log.faults,
        )

    @property
    def rounds_done(self) -> int:
        """Number of rounds that are aggregated so far."""
        return self.log.rounds_done

    def metrics_so_far(self) -> dict[str, float]:
        """The metrics so far, see `RunAuditor.metrics_so_far`."""
        noise_multiplier = None
        # The analytical ε of correlated noise is computed only after the run.
        if self.config.mechanism == "independent":
            noise_multiplier = self.config.noise_multiplier
        return self.auditor.metrics_so_far(noise_multiplier)

    def model(self) -> ArrayRecord:
        """The model after the rounds done.

        Raises:
            ValueError: before the first round.
        """
        if self._state is None:
            raise ValueError("Expected a model after at least one round.")
        return share(theta=self._state.theta)

    def summary(self) -> None:
        """Log the settings."""
        logger.info("DP-FedAvg with canaries: %s", self.config)

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """One instruction for each node that has a client or canary in this round."""
        theta = read_only(arrays["theta"])
        if self._state is None:
            self._state = dp_fedavg.initial_state(self.config, theta)
            self._initial_theta = theta
            self.auditor.begin(theta)
        self._state = dataclasses.replace(self._state, theta=theta)
        if server_round == 1:
            self._nodes.wait_for_all(grid)
        else:
            # At least one client must be reachable, so that no round releases only noise.
            for fault in self._nodes.refresh_until(grid, 1):
                self.log.add_fault(fault.kind, fault.text)
        t = self.rounds_done
        model = share(theta=theta)
        self._instructions = {}
        messages = []
        shares = self._nodes.share(self.log.cohorts[t], self.log.canary_ids(t))
        for node, clients, canary_ids in shares:
            instruction = TrainInstruction(
                theta=theta,
                round_number=t + 1,
                clip_norm=self._state.clip_norm,
                clients=clients,
                canary_ids=canary_ids,
                canary_seed=self.seeds.canary,
                num_canaries=self._num_canaries,
                canary_kind=self.config.canary_kind,
                local_seed=self.seeds.local,
                local_epochs=self.config.local_epochs,
                local_batch_size=self.config.local_batch_size,
                local_learning_rate=self.config.local_learning_rate,
                separate=self.config.full_knowledge,
            )
            self._instructions[node] = instruction
            content = instruction.encode(model)
            # A reply has the group of its message, which shows its round.
            message = Message(
                content, node, MessageType.TRAIN, group_id=str(t + 1)
            )
            messages.append(message)
        self._sent = [message.metadata for message in messages]
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add up the replies and take the next step; a missing reply counts as zero."""
        config = self.config
        n = config.cohort_size
        assert self._state is not None  # noqa: S101 - configure_train came first
        t = self._state.rounds_done
        clip_norm = self._state.clip_norm
        parts = collect(
            replies, self._instructions, self._sent, t + 1, self.log.add_fault
        )
        total = add_up_and_free(
            parts.values(),
            len(self._initial_theta),
            separate=config.full_knowledge,
        )
        # No variable refers to the previous state, so that its memory is freed.
        self._state, released = dp_fedavg.next_round(
            config, self.seeds, self._state, total.take(), self._noise_health
        )
        followed = [self._instructions[node] for node in parts]
        self.log.close_round(followed, total, clip_norm)
        # The instructions refer to the previous model.
        self._instructions = {}
        facts = auditing.RoundFacts(
            present=self.log.canary_ids(t).tolist(),
            contribution=clip_norm / n,
            clip_norm=clip_norm,
            replies=n,
        )
        self.auditor.observe(self._state.theta, facts, released=released)
        series = self.log.history.items()
        metrics = MetricRecord({name: values[-1] for name, values in series})
        return self.model(), metrics

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """No messages, as the model is evaluated on the server."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """No metrics, as the model is evaluated on the server."""
        return None

    def record(
        self, arrays: ArrayRecord, metrics: Mapping[str, Floats] | None = None
    ) -> auditing.AuditRecord:
        """The record of the run, scored against the final model ``arrays``.

        Args:
            arrays: the final model, as `Strategy.start` returned it.
            metrics: further series for the record, such as those of an evaluation on the
                server.

        Raises:
            ValueError: before the first round.
        """
        if not self.rounds_done:
            raise ValueError("Expected a record after at least one round.")
        config = self.config
        observed_ids = self.log.observed_ids
        ended_early = (
            config.stop_when is not None and self.rounds_done < config.rounds
        )
        if ended_early and not self._law.hidden:
            # A canary whose first round was not reached is unobserved.
            observed_ids = observed_ids[self.log.canaries_seen()]
        settings = dataclasses.asdict(config)
        settings["num_canaries"] = len(observed_ids)
        noise, faults = self._noise_health.findings()
        plan = tuple(config.canary_plan())
        series = {name: self.log.series(name) for name in METRICS}
        return self.auditor.record(
            observed_ids,
            read_only(arrays["theta"]).astype(np.float64),
            mechanism=self._mechanism(),
            clients=self.log.clients(),
            metrics={**(metrics or {}), **series},
            design=auditing.Design.of(settings),
            findings=auditing.Findings(
                plan=plan, mechanism_faults=faults, noise=noise
            ),
            seeds=dataclasses.asdict(self.seeds),
        )

    def _mechanism(self) -> auditing.Mechanism:
        config = self.config
        rounds = self.rounds_done
        strategy = config.strategy()
        matrix = None
        if strategy is not None:
            matrix = strategy.matrix()[:rounds, :rounds]
        momentum = 0.0
        if config.server_optimizer == "sgd":
            momentum = config.server_momentum
        return auditing.Mechanism(
            cohort_size=config.cohort_size,
            noise_multiplier=config.noise_multiplier,
            sum_noise_multiplier=config.sum_noise_multiplier(),
            participation=self._law.in_record(),
            canary_participations=self._participations(),
            server=auditing.ServerStep(
                config.server_optimizer,
                np.full(rounds, config.server_learning_rate),
                momentum,
            ),
            clip_norms=self.log.series("clip_norm"),
            inclusion=config.inclusion,
            strategy=matrix,
        )

    def _participations(self) -> float:
        """The mean number of rounds of a canary in the plan; with hidden rounds, of those done."""
        schedule = self.config.canary_schedule()
        if self._law.hidden:
            return float(
                schedule.participations() * self.rounds_done / schedule.rounds
            )
        if self.config.on_ladder:
            presence = self.log.presence
            return float(presence.sum() / max(presence.shape[1], 1))
        return schedule.participations()

    def state(self) -> NamedArrays:
        """The state that a resumed run needs besides the seeds, as named arrays."""
        if self._state is None:
            return {}
        return {
            "theta": self._state.theta,
            "start": self._initial_theta,
            "clip_norm": np.array(self._state.clip_norm),
            **{
                f"noise.{i}": vector
                for i, vector in enumerate(self._state.noise)
            },
            **self.log.state(),
            **add_prefix(self._state.optimizer, "optimizer."),
            **add_prefix(self.auditor.state(keep_waiting=True), "auditor."),
            **add_prefix(self._noise_health.state(), "health."),
        }

    def restore(self, state: NamedArrays) -> None:
        """The inverse of `state`; `Strategy.start` then runs the remaining rounds."""
        self.log.restore(state)
        self._noise_health.restore(select_prefix(state, "health."))
        theta = state["theta"]
        self._initial_theta = state["start"]
        self._state = dp_fedavg.ServerState(
            theta=theta,
            clip_norm=float(state["clip_norm"]),
            optimizer=select_prefix(state, "optimizer."),
            noise=tuple(select_prefix(state, "noise.").values()),
            rounds_done=self.rounds_done,
        )
        self.auditor.restore(
            select_prefix(state, "auditor."),
            self.rounds_done,
            start=self._initial_theta,
            last=theta,
        )
