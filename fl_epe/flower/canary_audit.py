"""`CanaryAudit`: wraps the strategy that a deployment has, and tells what the run gives away."""

from __future__ import annotations

import logging
import math
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fl_epe.auditing import (
    AuditRecord,
    EpsilonEstimate,
    RunAuditor,
    epsilon_from_record,
)
from fl_epe.canaries import SCORE_MEMORY
from fl_epe.checks import check_probability
from fl_epe.flower.client_canaries import ClientCanaries
from fl_epe.flower.injection import real_metrics_only
from fl_epe.flower.layout import Layout
from fl_epe.flower.self_auditing import OwnAuditor, SelfAuditing
from fl_epe.flower.sources import ClientAnswers, OwnCanaries, RoundState, ServerCanaries, Source
from fl_epe.flower.wrapped import Wrapped
from fl_epe.mechanism import norm
from fl_epe.schedules import ShuffledEpochs
from fl_epe.seeding import generator

logger = logging.getLogger(__name__)

_SCHEDULE = 0  # stream of the canaries' rounds
_FAULTS_KEPT = 100


class CanaryAudit(Strategy):
    """Audits any message-API strategy: it goes on as before, and canaries take part beside it.

    Each canary's update is a random direction, as loud as a real client's: brought to the clip
    norm by the strategy's own clipping where there is one, else as long as the median real update.
    How well every round's model delta, and the final model, remember those directions is the
    measure of what a client gives away (Andrew et al. 2024). Nothing else changes: messages to
    real clients, their replies and the aggregated metrics are as they were; ``epsilon-all`` (with
    ``-low`` and ``-high``, 95%) is added to each round's metrics, ``epsilon-final`` to the last's.

    Replies are added where any number will do. Flower's DP wrappers add noise for
    ``num_sampled_clients`` replies: canaries fill up to that number, and beyond it take the place
    of clients drawn at random, who are not asked in that round. A strategy that has canaries of its
    own (`SelfAuditing`, as `DPFedAvg` is) keeps them: the audit sets their seed and reports at
    ``delta``; ``num_canaries`` must agree, and the other arguments are refused.

    Args:
        strategy: what the deployment uses, DP wrappers included.
        num_canaries: canaries that take part, each ``participations`` times. Real clients that
            take part more often give away more: μ, the shift of the two Gaussians, grows with
            the square root of the participations.
        seed: of the canaries. Fresh from the operating system by default, and that is what a
            deployment needs: whoever can guess it can subtract the canaries.
        delta: target δ.
        unobserved: canaries that are scored and never take part. By default a quarter of
            ``num_canaries`` where each takes part once, as the null is then exact; else as many.
        participations: how often a canary takes part, at most once in a round; 1 by default.
        rounds: of the run; `start` knows, so this is only for those who do not call it.
        inject: "auto" as described (the default), "add" or "replace".
        clients: let clients answer through `canary_mod` instead of making replies up: a share in
            (0, 1], chosen by hashing with the seed, or a list. They answer with their canary
            whenever the strategy asks them.
        identity: what stays the same about a client (a partition id), from its node id; for
            ``clients``, and to count how often a client took part.
        num_examples: weight of a canary in averages; the median of the real ones by default.
        canary_norm: norm of a canary's update where nothing clips.
        noise_multiplier: z of a strategy that the audit does not know, for the analytical ε.
        leave_out: names or patterns of arrays that canaries leave alone, such as
            ``"*.running_var"``; integer and 0-d arrays always are.
        score_memory: memory for model deltas that wait to be scored together; 512 MiB by default.

    Raises:
        TypeError: for a strategy of another API.
        ValueError: for an argument out of range, or a strategy that cannot be audited honestly.
    """

    is_canary_audit = True

    def __init__(
        self,
        strategy: Strategy,
        *,
        num_canaries: int,
        delta: float,
        seed: int | None = None,
        unobserved: int | None = None,
        participations: float | None = None,
        rounds: int | None = None,
        inject: str | None = None,
        clients: float | Collection[int] | None = None,
        identity: Callable[[int], int] | None = None,
        num_examples: float | None = None,
        canary_norm: float | None = None,
        noise_multiplier: float | None = None,
        leave_out: Sequence[str] | None = None,
        score_memory: int | None = None,
    ) -> None:
        self.strategy = strategy
        self.delta = delta
        self.num_canaries = num_canaries
        self._wrapped = Wrapped.inspect(strategy)
        if isinstance(strategy, SelfAuditing):
            _refuse(
                f"with {self._wrapped.description}, which schedules and scores its canaries itself",
                unobserved=unobserved,
                participations=participations,
                rounds=rounds,
                inject=inject,
                clients=clients,
                identity=identity,
                num_examples=num_examples,
                canary_norm=canary_norm,
                noise_multiplier=noise_multiplier,
                leave_out=leave_out,
                score_memory=score_memory,
            )
        if clients is not None:
            _refuse(
                "with clients, who answer whenever they are asked, with their own weight",
                participations=participations,
                inject=inject,
                num_examples=num_examples,
            )
        self._participations = 1 if participations is None else participations
        self.unobserved = unobserved if unobserved is not None else num_canaries
        if unobserved is None and self._participations <= 1 and clients is None:
            self.unobserved = max(2, num_canaries // 4)
        self._seed = secrets.randbits(128) if seed is None else seed
        self._rounds = rounds
        self._inject = "auto" if inject is None else inject
        self._clients, self._identity = clients, identity
        self._num_examples, self._canary_norm = num_examples, canary_norm
        self._noise_multiplier = noise_multiplier
        self._leave_out = tuple(leave_out or ())
        self._check()
        self._watch: RunAuditor | OwnAuditor = (
            OwnAuditor(strategy, delta, self._seed)
            if isinstance(strategy, SelfAuditing)
            else RunAuditor(
                num_canaries,
                self.unobserved,
                seed=self._seed,
                delta=delta,
                server=self._wrapped.server(),
                score_memory=SCORE_MEMORY if score_memory is None else score_memory,
            )
        )
        self._layout: Layout | None = None
        self._source: Source | None = None
        self._turn: RoundState | None = None
        self._answers: Counter[int] = Counter()
        self._faults: list[str] = []
        self._finished: AuditRecord | None = None

    def _check(self) -> None:
        check_probability("delta", self.delta)
        least = {"num_canaries": (self.num_canaries, 2), "seed": (self._seed, 0)}
        least["unobserved"] = (self.unobserved, 0)
        if self._rounds is not None:
            least["rounds"] = (self._rounds, 1)
        for name, (value, bound) in least.items():
            if value < bound:
                raise ValueError(f"Expected {name}={value} >= {bound}.")
        for name in ("num_examples", "canary_norm"):
            value = getattr(self, f"_{name}")
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"Expected {name}={value} in (0, inf).")
        z = self._noise_multiplier
        if z is not None and not 0 <= z < math.inf:
            raise ValueError(f"Expected noise_multiplier={z} in [0, inf).")
        if not 0 < self._participations < math.inf:
            raise ValueError(f"Expected participations={self._participations} in (0, inf).")
        if self._inject not in ("auto", "add", "replace"):
            raise ValueError(f"Expected inject={self._inject!r} to be 'auto', 'add' or 'replace'.")
        if self._inject == "add" and self._wrapped.strict():
            raise ValueError(
                "Expected inject='auto' or 'replace', got 'add': with an accountant a round with"
                " more replies than num_sampled_clients fails."
            )
        self._check_own()
        if self._clients is not None:  # refuses what cannot be
            self._client_canaries(self._clients)

    def _check_own(self) -> None:
        if isinstance(self.strategy, SelfAuditing):
            theirs = self.strategy.num_canaries
            if self.num_canaries != theirs:
                raise ValueError(
                    f"Expected num_canaries={self.num_canaries} to be {theirs}:"
                    f" {self._wrapped.description} schedules its canaries itself."
                )

    def _client_canaries(self, clients: float | Collection[int]) -> ClientCanaries:
        return ClientCanaries(
            self.num_canaries,
            self.unobserved,
            self._seed,
            clients,
            self._identity,
            self._leave_out,
        )

    def summary(self) -> None:
        """Log what is audited, and how; never the seed."""
        self.strategy.summary()
        own = isinstance(self._watch, OwnAuditor)
        logger.info(
            "Audit of %s: %d canaries (%s), delta %g",
            self._wrapped.description,
            self.num_canaries,
            "its own" if own else f"and {self.unobserved} that never take part",
            self.delta,
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """See `Strategy.start`; the canaries are spread over ``num_rounds``.

        Raises:
            ValueError: if ``rounds`` was given and differs, or the arrays cannot be audited.
        """
        if self._rounds not in (None, num_rounds):
            raise ValueError(f"Expected num_rounds={num_rounds} to be rounds={self._rounds}.")
        self._rounds = num_rounds
        return super().start(
            grid,
            initial_arrays,
            num_rounds,
            timeout,
            train_config,
            evaluate_config,
            evaluate_fn,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The strategy's messages; less those to clients that canaries replace."""
        layout, source = self._begin(arrays)
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        index = self._watch.rounds
        self._turn = RoundState(index, arrays, layout, self._wrapped.clip_norm())
        source.configure(self._turn, messages)
        return self._turn.sent

    def _begin(self, arrays: ArrayRecord) -> tuple[Layout, Source]:
        if self._layout is None or self._source is None:
            self._layout = Layout.of(arrays, self._leave_out)
            if self._layout.left_out:
                logger.warning("Canaries leave alone: %s", ", ".join(self._layout.left_out))
            self._watch.begin(self._layout.flatten(arrays))
            self._source = self._make_source()
        return self._layout, self._source

    def _make_source(self) -> Source:
        if isinstance(self._watch, OwnAuditor):
            return OwnCanaries()
        if self._clients is not None:
            clients = self._client_canaries(self._clients)
            return ClientAnswers(self._wrapped, clients, self._canary_norm)
        if self._rounds is None:
            raise ValueError("Expected rounds, as start() was not called: got rounds=None.")
        schedule = ShuffledEpochs(self._rounds, self._participations)
        rng = generator(self._seed, _SCHEDULE)
        return ServerCanaries(
            self._wrapped,
            list(schedule.cohorts(self.num_canaries, rng)),
            self._watch.canaries,
            self._seed,
            self._inject,
            self._num_examples,
            self._canary_norm,
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the strategy makes of the replies and the canaries', and ε so far.

        Raises:
            ValueError: if the replies' arrays do not fit the model, by name.
        """
        state = self._turn
        if state is None or self._source is None:
            raise ValueError("Expected configure_train before aggregate_train.")
        real = list(replies)
        self._count(state, real)
        joined = self._source.join(state, real)
        with real_metrics_only(self._wrapped.base, state.made_up):
            arrays, metrics = self.strategy.aggregate_train(server_round, joined)
        self._observe(state, arrays)
        return arrays, self._with_epsilon(arrays, metrics)

    def _count(self, state: RoundState, real: list[Message]) -> None:
        # A SuperLink answers in the name of a node that died, under its own id.
        asked = {m.metadata.message_id: m.metadata.dst_node_id for m in state.sent}
        for reply in real:
            node = asked.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            if reply.has_error():
                self._fault(state, f"node {node}: {reply.error.reason}")
            else:
                self._answers[self._identity(node) if self._identity else node] += 1
        silent = len(state.sent) - len(real)
        if silent > 0:
            self._fault(state, f"{silent} of {len(state.sent)} clients did not answer")

    def _fault(self, state: RoundState, text: str) -> None:
        if len(self._faults) < _FAULTS_KEPT:
            self._faults.append(f"round {state.index + 1}, {text}")

    def _observe(self, state: RoundState, arrays: ArrayRecord | None) -> None:
        theta = state.layout.flatten(arrays) if arrays else None
        if theta is None:
            self._fault(state, "the strategy released no model")
        elif not math.isfinite(norm(theta)):
            self._fault(state, "the strategy released a model with NaN or infinite entries")
            theta = None
        self._watch.observe(theta, state.facts, state.vectors)
        self._turn = self._finished = None

    def _with_epsilon(
        self, arrays: ArrayRecord | None, metrics: MetricRecord | None
    ) -> MetricRecord | None:
        if not arrays:
            return metrics
        found: dict[str, EpsilonEstimate | None] = {"all": self._watch.epsilon_so_far()}
        if self._watch.rounds == self._rounds and found["all"] is not None:
            found["final"] = epsilon_from_record(self.record())
        out = MetricRecord(dict(metrics.items()) if metrics else {})
        for name, estimate in found.items():
            if estimate is not None:
                out[f"epsilon-{name}"] = estimate.epsilon
                out[f"epsilon-{name}-low"] = estimate.low
                out[f"epsilon-{name}-high"] = estimate.high
        return out

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """What the strategy does."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """What the strategy does."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def record(self) -> AuditRecord:
        """What the run leaves behind so far, for every estimate and bound.

        Raises:
            ValueError: before two canaries have taken part.
        """
        if self._finished is None:
            try:
                self._finished = self._watch.record(**self._facts())
            except ValueError as error:
                reasons = "; ".join(self._faults[:3])
                raise ValueError(f"{error} {reasons}".strip()) from error
        return self._finished

    def _facts(self) -> dict[str, Any]:
        claimed, of_sum = self._wrapped.noise_multipliers()
        if self._noise_multiplier is not None:
            claimed = of_sum = self._noise_multiplier
        facts: dict[str, Any] = {
            "noise_multiplier": claimed,
            "sum_noise_multiplier": of_sum,
            "participation": self._source.participation if self._source else "deployment",
            "faults": tuple(self._faults),
            "config": self._config(),
        }
        if self._watch.rounds == self._rounds and isinstance(self._source, ServerCanaries):
            facts["canary_participations"] = float(self._participations)
        return facts

    def _config(self) -> dict[str, Any]:
        by_server = self._clients is None
        return {
            "task": self._wrapped.description,
            "num_canaries": self.num_canaries,
            "unobserved": self.unobserved,
            "participations": self._participations if by_server else None,
            "canaries_come_from": f"server ({self._inject})" if by_server else "clients",
            "num_examples": self._num_examples,
            "canary_norm": self._canary_norm,
            "caveat": self._wrapped.caveat(),
            "noise_is_for": self._wrapped.expected_replies(),
            "arrays_left_out": list(self._layout.left_out) if self._layout else [],
            "client_participations": self._client_participations(),
        }

    def _client_participations(self) -> float | None:
        """How many rounds a real client answered in, on average."""
        counts = list(self._answers.values())
        return float(np.mean(counts)) if counts else None

    def report(self, directory: str | Path | None = None) -> str:
        """The report as text; with a ``directory``, also record.npz, report.json and report.html.

        Raises:
            ValueError: before two canaries have taken part.
        """
        from fl_epe.reporting import as_text, summarize, write_report  # slow to import

        record = self.record()
        if directory is None:
            return as_text(summarize(record))
        record.save(Path(directory) / "record.npz")
        return as_text(write_report(record, Path(directory)))


def _refuse(why: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"Expected no {name}={value!r} {why}.")
