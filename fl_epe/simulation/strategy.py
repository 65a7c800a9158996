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
from fl_epe.archive import put_under, under
from fl_epe.checks import Floats, Floats32, NamedArrays
from fl_epe.config import RunConfig
from fl_epe.mechanism import ServerSGD
from fl_epe.messages import read_only, share
from fl_epe.noise import RUN_LEVEL, NoiseHealth
from fl_epe.schedules import Cohort
from fl_epe.seeding import Seeds
from fl_epe.simulation import dp_fedavg
from fl_epe.simulation.messages import TrainInstruction, add_up, collect
from fl_epe.simulation.node_registry import NodeRegistry
from fl_epe.simulation.round_log import METRICS, RoundLog

logger = logging.getLogger(__name__)

_WAIT_FOR_NODES = 600.0  # seconds until nodes that hold all clients have to be there


class DPFedAvg(Strategy):
    """DP-FedAvg that schedules clients and canaries, and records how much of a canary leaks.

    Each round it orders every node to train its share of the cohort, adds up the partial sums, and
    takes the next step of `fl_epe.simulation.dp_fedavg`. Observed canaries are 0 … k−1; the
    unobserved ones after them are scored and never take part. How the canaries' rounds are drawn:
    `fl_epe.config.RunConfig`.

    Args:
        config: everything that decides the result.
        seeds: the random streams; fresh ones from the operating system by default.
        client_sizes: examples of each client of a cohort, to balance the work of nodes that hold
            all clients; by default all are alike. No influence on the result.

    Attributes:
        log: who took part when, and faults.
        auditor: scores the canaries.
    """

    audits_itself = True  # `CanaryAudit` refuses it

    def __init__(
        self,
        config: RunConfig,
        seeds: Seeds | None = None,
        *,
        client_sizes: Callable[[Cohort], np.ndarray] | None = None,
    ) -> None:
        self.config = config
        self.seeds = seeds or Seeds.derive(None)
        self._nodes = NodeRegistry(config.clients, _WAIT_FOR_NODES, client_sizes)
        self.log = RoundLog(dp_fedavg.draw_plan(config, self.seeds))
        self._instructions: dict[int, TrainInstruction] = {}
        self._sent: list[Metadata] = []  # their ids are known once they are sent
        self._state: dp_fedavg.ServerState | None = None
        self._start: Floats32 = np.empty(0, np.float32)
        self._noise = NoiseHealth(level=RUN_LEVEL)
        # Where the rounds are secret, the client is one that takes part like a canary.
        law = config.client_schedule().law(config.clients)
        self._law = config.canary_schedule().law(config.clients) if law.hidden else law
        server, noise = config.optimizer(), config.strategy()
        mine = self.log.canaries if config.by_coin else len(self.log.observed_ids)
        self._canaries = max(
            self.log.canaries, 2
        )  # where there is none, they are only scored
        self.auditor = auditing.RunAuditor(
            max(mine, 2),
            self._canaries - max(mine, 2),
            seed=self.seeds.canary,
            delta=config.target_delta,
            server=server if isinstance(server, ServerSGD) else config.server_optimizer,
            planned=float(self.log.presence.sum()) or None,
            client=self._law,
            kind=config.canary_kind,
            series=dp_fedavg.released_series(config),
            follow=config.stop_when is not None
            or config.canary_kind == "rotation",  # cheap
            window=auditing.WINDOW
            if noise is None
            else max(auditing.WINDOW, noise.reach),
            faults=self.log.faults,
        )

    @property
    def rounds_done(self) -> int:
        """Rounds aggregated so far."""
        return self.log.rounds_done

    def metrics_so_far(self) -> dict[str, float]:
        """`RunAuditor.metrics_so_far`."""
        independent = self.config.mechanism == "independent"
        return self.auditor.metrics_so_far(
            self.config.noise_multiplier if independent else None
        )

    def model(self) -> ArrayRecord:
        """The model after the rounds done.

        Raises:
            ValueError: before the first round.
        """
        if self._state is None:
            raise ValueError("Expected a model after at least one round.")
        return share(theta=self._state.theta)

    def summary(self) -> None:
        """Log what will be done."""
        logger.info("DP-FedAvg with canaries: %s", self.config)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One order to each node that holds somebody of this round's cohort."""
        theta = read_only(arrays["theta"])
        if self._state is None:
            self._state, self._start = (
                dp_fedavg.initial_state(self.config, theta),
                theta,
            )
            self.auditor.begin(theta)
        self._state = dataclasses.replace(self._state, theta=theta)
        if server_round == 1:
            self._nodes.wait_for_all(grid)
        else:
            for fault in self._nodes.refresh_until(grid, 1):  # no round is noise alone
                self.log.fault(*fault)
        t, settings = self.rounds_done, self.config
        self._instructions = {
            node: TrainInstruction(
                theta=theta,
                round_number=t + 1,
                clip_norm=self._state.clip_norm,
                clients=clients,
                canary_ids=canary_ids,
                canary_seed=self.seeds.canary,
                num_canaries=self._canaries,
                canary_kind=settings.canary_kind,
                local_seed=self.seeds.local,
                local_epochs=settings.local_epochs,
                local_batch_size=settings.local_batch_size,
                local_learning_rate=settings.local_learning_rate,
                separate=settings.full_knowledge,
            )
            for node, clients, canary_ids in self._nodes.share(
                self.log.cohorts[t], self.log.canary_ids(t)
            )
        }
        model = share(theta=theta)
        messages = [
            Message(
                instruction.encode(model), node, MessageType.TRAIN, group_id=str(t + 1)
            )
            for node, instruction in self._instructions.items()
        ]
        self._sent = [message.metadata for message in messages]
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add up, and take the next step; what is missing counts as zero."""
        config, n = self.config, self.config.cohort_size
        assert self._state is not None  # noqa: S101 - configure_train came first
        t, clip_norm = self._state.rounds_done, self._state.clip_norm
        answers = collect(
            replies, self._instructions, self._sent, t + 1, self.log.fault
        )
        found = add_up(
            answers.values(), len(self._start), separate=config.full_knowledge
        )
        # No name here holds the state before, so that its memory ends with it.
        self._state, released = dp_fedavg.next_round(
            config, self.seeds, self._state, found.take(), self._noise
        )
        answered = [self._instructions[node] for node in answers]
        self.log.close_round(answered, found, clip_norm)
        self._instructions = {}  # they hold the model before
        facts = auditing.RoundFacts(
            present=self.log.canary_ids(t).tolist(),
            contribution=clip_norm / n,
            clip_norm=clip_norm,
            replies=n,
        )
        self.auditor.observe(self._state.theta, facts, released=released)
        return self.model(), MetricRecord(
            {n: row[-1] for n, row in self.log.history.items()}
        )

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
        self, arrays: ArrayRecord, metrics: Mapping[str, Floats] | None = None
    ) -> auditing.AuditRecord:
        """What the run leaves behind, scored against the final model ``arrays``.

        Args:
            arrays: the final model, as `Strategy.start` returned it.
            metrics: more series to keep, such as those of an evaluation on the server.

        Raises:
            ValueError: before the first round.
        """
        if not self.rounds_done:
            raise ValueError("Expected a record after at least one round.")
        ids, config = self.log.observed_ids, self.config
        early = config.stop_when is not None and self.rounds_done < config.rounds
        if early and not self._law.hidden:
            ids = ids[
                self.log.canaries_seen()
            ]  # one whose turn did not come is unobserved
        settings = dataclasses.asdict(config) | {"num_canaries": len(ids)}
        noise, faults = self._noise.findings()
        plan = tuple(config.canary_plan())
        return self.auditor.record(
            ids,
            read_only(arrays["theta"]).astype(np.float64),
            mechanism=self._mechanism(),
            clients=self.log.clients(),
            metrics={
                **(metrics or {}),
                **{name: self.log.series(name) for name in METRICS},
            },
            design=auditing.Design.of(settings),
            findings=auditing.Findings(plan=plan, step_faults=faults, noise=noise),
            seeds=dataclasses.asdict(self.seeds),
        )

    def _mechanism(self) -> auditing.Mechanism:
        config, strategy, done = self.config, self.config.strategy(), self.rounds_done
        return auditing.Mechanism(
            cohort_size=config.cohort_size,
            noise_multiplier=config.noise_multiplier,
            sum_noise_multiplier=config.sum_noise_multiplier(),
            participation=self._law.in_record(),
            canary_participations=self._participations(),
            server=auditing.ServerStep(
                config.server_optimizer,
                np.full(done, config.server_learning_rate),
                config.server_momentum if config.server_optimizer == "sgd" else 0.0,
            ),
            clip_norms=self.log.series("clip_norm"),
            inclusion=config.inclusion,
            strategy=None if strategy is None else strategy.matrix()[:done, :done],
        )

    def _participations(self) -> float:
        """How often a canary is expected to take part in the rounds done."""
        schedule, here = self.config.canary_schedule(), self.log.presence
        if self._law.hidden:
            return float(schedule.participations() * self.rounds_done / schedule.rounds)
        if self.config.on_ladder:
            return float(here.sum() / max(here.shape[1], 1))
        return schedule.participations()

    def state(self) -> NamedArrays:
        """Everything but the seeds that a resumed run needs, as named arrays."""
        if self._state is None:
            return {}
        return {
            "theta": self._state.theta,
            "start": self._start,
            "clip_norm": np.array(self._state.clip_norm),
            **{f"noise.{i}": vector for i, vector in enumerate(self._state.noise)},
            **self.log.state(),
            **put_under("optimizer.", self._state.optimizer),
            **put_under("auditor.", self.auditor.state(keep_waiting=True)),
            **put_under("health.", self._noise.state()),
        }

    def restore(self, state: NamedArrays) -> None:
        """Take up what `state` returned; `Strategy.start` then runs the rounds that are left."""
        self.log.restore(state)
        self._noise.restore(under(state, "health."))
        theta, self._start, done = state["theta"], state["start"], self.rounds_done
        clip_norm, optimizer = float(state["clip_norm"]), under(state, "optimizer.")
        noise = tuple(under(state, "noise.").values())
        self._state = dp_fedavg.ServerState(theta, clip_norm, optimizer, noise, done)
        self.auditor.restore(
            under(state, "auditor."), done, start=self._start, last=theta
        )
