"""`CanaryAudit`: audits a deployment by wrapping its strategy.

Hand ``CanaryAudit(strategy, num_canaries=…, delta=…)`` to Flower in place of the strategy, and call
`CanaryAudit.report` after the run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fl_epe.auditing import AuditRecord, EpsilonEstimate, epsilon_from_record
from fl_epe.flower.answer_log import AnswerLog
from fl_epe.flower.audit_settings import AuditSettings
from fl_epe.flower.injection import real_metrics_only
from fl_epe.flower.layout import Layout
from fl_epe.flower.round_state import RoundState
from fl_epe.flower.self_auditing import OwnAuditor
from fl_epe.flower.sources import ServerCanaries, Source
from fl_epe.flower.wrapped import Wrapped
from fl_epe.mechanism import norm

logger = logging.getLogger(__name__)


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
            take part more often give away more: μ, the distance between the two Gaussians, grows
            with the square root of the participations.
        seed: of the canaries. Fresh from the operating system by default, and a deployment needs
            that: anyone who guesses it can subtract the canaries.
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
        score_memory: bytes for model deltas that wait to be scored together; 384 MiB by default.

    Raises:
        TypeError: for a strategy of another API.
        ValueError: for an argument out of range, or a strategy that cannot be audited honestly.
    """

    is_canary_audit = True

    _layout: Layout | None = None
    _source: Source | None = None
    _turn: RoundState | None = None
    _finished: AuditRecord | None = None

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
        self.strategy, self.delta = strategy, delta
        self._settings = AuditSettings.of(
            Wrapped.inspect(strategy),
            num_canaries=num_canaries,
            delta=delta,
            seed=seed,
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
        self.num_canaries, self.unobserved = num_canaries, self._settings.unobserved
        self._auditor, self._rounds = self._settings.auditor(), rounds
        self._log = AnswerLog(identity)

    def summary(self) -> None:
        """Log what is audited, and how; never the seed."""
        self.strategy.summary()
        own = isinstance(self._auditor, OwnAuditor)
        logger.info(
            "Audit of %s: %d canaries (%s), delta %g",
            self._settings.wrapped.description,
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
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The strategy's messages; less those to clients that canaries replace."""
        layout, source = self._begin(arrays)
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        clip_norm = self._settings.wrapped.clip_norm()
        self._turn = RoundState(self._auditor.rounds, arrays, layout, clip_norm)
        source.configure(self._turn, messages)
        return self._turn.sent

    def _begin(self, arrays: ArrayRecord) -> tuple[Layout, Source]:
        if self._layout is None or self._source is None:
            self._layout = Layout.of(arrays, self._settings.leave_out)
            if self._layout.left_out:
                logger.warning("Canaries leave alone: %s", ", ".join(self._layout.left_out))
            self._auditor.begin(self._layout.flatten(arrays))
            self._source = self._settings.source(self._rounds, self._auditor)
        return self._layout, self._source

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
        self._log.note(state, real)
        joined = self._source.join(state, real)
        with real_metrics_only(self._settings.wrapped.base, state.made_up):
            arrays, metrics = self.strategy.aggregate_train(server_round, joined)
        self._observe(state, arrays)
        return arrays, self._with_epsilon(arrays, metrics)

    def _observe(self, state: RoundState, arrays: ArrayRecord | None) -> None:
        theta = state.layout.flatten(arrays) if arrays else None
        if theta is None:
            self._log.fault(state, "the strategy released no model")
        elif not math.isfinite(norm(theta)):
            self._log.fault(state, "the strategy released a model with NaN or infinite entries")
            theta = None
        self._auditor.observe(theta, state.facts, state.vectors)
        self._turn = self._finished = None

    def _with_epsilon(
        self, arrays: ArrayRecord | None, metrics: MetricRecord | None
    ) -> MetricRecord | None:
        if not arrays:
            return metrics
        found: dict[str, EpsilonEstimate | None] = {"all": self._auditor.epsilon_so_far()}
        if self._auditor.rounds == self._rounds and found["all"] is not None:
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
                self._finished = self._auditor.record(**self._facts())
            except ValueError as error:
                reasons = "; ".join(self._log.faults[:3])
                raise ValueError(f"{error} {reasons}".strip()) from error
        return self._finished

    def _facts(self) -> dict[str, Any]:
        claimed, of_sum = self._settings.noise_multipliers()
        facts: dict[str, Any] = {
            "noise_multiplier": claimed,
            "sum_noise_multiplier": of_sum,
            "participation": self._source.participation if self._source else "deployment",
            "faults": tuple(self._log.faults),
            "config": {
                **self._settings.to_config(),
                "arrays_left_out": list(self._layout.left_out) if self._layout else [],
                "client_participations": self._log.participations(),
            },
        }
        if self._auditor.rounds == self._rounds and isinstance(self._source, ServerCanaries):
            facts["canary_participations"] = float(self._settings.participations)
        return facts

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
