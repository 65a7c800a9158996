"""`CanaryAudit`: audits a deployment by wrapping its strategy.

Hand ``CanaryAudit(strategy, num_canaries=…, delta=…)`` to Flower in place of the strategy, and call
`CanaryAudit.report` after the run.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_epe.auditing import AuditRecord
from fl_epe.canaries import CanaryKind
from fl_epe.flower.attachment import Attachment, Undo, argument
from fl_epe.flower.audit_log import AuditLog, logger
from fl_epe.flower.audit_settings import AuditSettings
from fl_epe.flower.audited_run import AuditedRun
from fl_epe.flower.averaging import Aggregation, watch_aggregation
from fl_epe.flower.client_canaries import CanarySecret
from fl_epe.flower.injection import readable, real_metrics_only
from fl_epe.flower.reply_kind import ReplyKind
from fl_epe.flower.round_state import RoundState
from fl_epe.flower.self_auditing import SelfAuditing
from fl_epe.flower.sources import SettingsError, TooManyCanariesError
from fl_epe.flower.wrapped import Wrapped

# Only a strategy that says so itself has canaries of its own.
_NOT_PASSED_ON = {name for name in vars(SelfAuditing) if not name.startswith("_")}


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

    A run with the audit ends whenever the run without it would. Whatever goes wrong inside, the
    strategy gets the round as if there were no audit (clients that a canary was to replace are
    asked after all), nobody counts as present, and the reason is a fault in the report. A strategy
    that fails on replies of nodes that it did not ask gets that round again without them; from then
    on canaries answer in the place of clients, and if it fails again there are no more.

    `start` calls the strategy's own ``start`` with the audit's hooks on that instance, so that a
    loop of one's own is audited too; `attach` sets them for whoever calls it otherwise. Attributes
    that an audit does not have are the strategy's.

    Args:
        strategy: what the deployment uses, DP wrappers included.
        num_canaries: canaries that take part, each ``participations`` times. Real clients that
            take part more often give away more: μ, the distance between the two Gaussians, grows
            with the square root of the participations.
        seed: of the canaries. Fresh from the operating system by default, and a deployment needs
            that: anyone who guesses it can subtract the canaries.
        delta: target δ.
        unobserved: canaries that are scored and never take part. By default a quarter of
            ``num_canaries`` where each takes part once, as the null is then exact; else as many,
            and at least 20, as their scores then say how wide the null is.
        participations: how often a canary takes part, at most once in a round; 1 by default.
        rounds: of the run; needed where ``start`` has no ``num_rounds``, is called more than once,
            or has a single round.
        inject: "auto" as described (the default), "add" or "replace".
        clients: let clients answer through `canary_mod` instead of making replies up: a share in
            (0, 1], chosen by hashing with the seed, or a list. They answer with their canary
            whenever the strategy asks them.
        identity: what stays the same about a client (a partition id), from its node id; for
            ``clients``, and to count how often a client took part.
        num_examples: weight of a canary in averages; by default drawn from those of the round's
            real replies.
        canary_norm: norm of a canary's update where nothing clips; without the noise, where
            clients add some themselves.
        noise_multiplier: z of a strategy that the audit does not know, for the analytical ε.
        leave_out: names or patterns of arrays that canaries leave alone, such as
            ``"*.running_var"``; integer and 0-d arrays always are, and what clients keep.
        score_memory: bytes for model deltas that wait to be scored together, with
            ``canary_kind="sphere"``; 384 MiB by default.
        replies: "model" or "delta", the difference from the model; by default the first replies
            show which, and where they do not no canary takes part.
        averages: whether the strategy averages its replies by weight and does nothing else. By
            default it is seen in every round what it does.
        max_share: largest share of a round's replies that canaries may have. By default 0.1, as
            more harms the model; with ``clients`` 0.5. Where there would be more, fewer canaries
            than ``num_canaries`` take part, and a warning says how many: at least one a round if
            that is at most twice the share, and up to half of a round where ``num_sampled_clients``
            of a DP wrapper has room for them.
        checkpoint: a folder in which the audit is kept after every round, so that a server app
            that was killed goes on with it: start again with the same arguments, the model after
            some round as initial arrays, and all rounds or those that are left as ``num_rounds``.
            The model says after which round; later ones, which are not in it, are forgotten.
            ``seed=None`` takes the seed that is kept, other arguments must be as they were. With
            another model it is another run: what is in the folder is moved aside, and a new audit
            begins. One folder for one run at a time.
        verdict: the one lower bound that the report names as its verdict: "auto" (the default, by
            the number of canaries and ``delta``), or a method such as "weighted", for every round's
            model; "final:weighted" is for the final model.
        canary_kind: "rotation" (the default) or "sphere", see `CanarySet`; with
            ``canary_secret="server"`` always "sphere", as one rotated canary gives away the others.
        canary_secret: for ``clients``: "seed" (the default) sends the seed of all canaries to the
            clients that play one; "server" sends each its own direction, as long as the model, in
            every round, and keeps the seed.

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
        replies: ReplyKind | None = None,
        averages: bool | None = None,
        max_share: float | None = None,
        checkpoint: str | Path | None = None,
        verdict: str | None = None,
        canary_kind: CanaryKind | None = None,
        canary_secret: CanarySecret | None = None,
    ) -> None:
        self.strategy, self.delta = strategy, delta
        self._turn: RoundState | None = None
        self._timeout: float = 3600
        self._is_running = False
        self._accepted = False  # whether the strategy has taken canaries once
        self._wrapped = Wrapped.inspect(strategy)
        self._settings = AuditSettings.of(
            self._wrapped,
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
            replies=replies,
            averages=averages,
            max_share=max_share,
            checkpoint=checkpoint,
            verdict=verdict,
            canary_kind=canary_kind,
            canary_secret=canary_secret,
        )
        self.num_canaries, self.unobserved = num_canaries, self._settings.unobserved
        self._log = AuditLog(identity)
        self._run = AuditedRun(self._settings, self._log, rounds)
        names = ("configure_train", "aggregate_train")
        self._hooks = Attachment(strategy, self, names, self._rescue, self._strategy_failed)

    def __getattr__(self, name: str) -> Any:
        """What an audit does not have is the strategy's."""
        if name.startswith("__") or name in _NOT_PASSED_ON or "strategy" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.strategy, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """What an audit had when it was made is its own; anything else is set on the strategy."""
        if name in vars(self) or "_hooks" not in vars(self):
            super().__setattr__(name, value)
        else:
            setattr(self.strategy, name, value)

    def __delattr__(self, name: str) -> None:
        """Like `__setattr__`."""
        if name in vars(self):
            super().__delattr__(name)
        else:
            delattr(self.strategy, name)

    def _announce(self) -> None:
        own = self._run.has_own_canaries
        logger.info(
            "Audit of %s: %d canaries (%s), delta %g",
            self._wrapped.description,
            self.num_canaries,
            "its own" if own else f"and {self.unobserved} that never take part",
            self.delta,
        )

    def start(self, *arguments: Any, **named: Any) -> Any:
        """The strategy's own ``start``, with the audit; takes and returns what that does.

        The canaries are spread over ``rounds``, by default its ``num_rounds``. Who starts more than
        once, each time with the last model, has to give ``rounds``, of all starts together: later
        rounds are not measured, nor is a single one if it is not said that there is only one.

        Raises:
            ValueError: before the first round, if there are more than ``rounds``, or
                ``participations`` do not fit into them, or an argument is not that of the audit in
                the checkpoint.
        """
        if self._is_running:  # called by a function that was put in its place
            return type(self.strategy).start(self.strategy, *arguments, **named)
        own = self.strategy.start
        try:
            self._prepare(own, arguments, named)
            self._announce()
        except SettingsError as error:
            if self._run.index == 0:
                raise
            self._failed("the audit could not prepare", error)  # it has trained
        except Exception as error:  # noqa: BLE001 - the run goes on
            self._failed("the audit could not prepare", error)
        try:
            self.attach()
        except Exception as error:  # noqa: BLE001 - the run goes on
            self._failed("the strategy cannot be hooked", error)
        try:
            self._is_running = True
            return own(*arguments, **named)
        finally:
            self._is_running = False
            try:
                self._hooks.detach()
            except Exception as error:  # noqa: BLE001 - the run is over
                self._failed("the strategy keeps the audit's hooks", error)

    def _prepare(self, own: Callable[..., Any], arguments: Any, named: Any) -> None:
        num_rounds = argument(own, "num_rounds", arguments, named)
        timeout = argument(own, "timeout", arguments, named)
        if isinstance(timeout, (int, float)):
            self._timeout = timeout
        arrays = argument(own, "initial_arrays", arguments, named)
        with contextlib.suppress(TypeError):  # a number of another kind is for the strategy
            num_rounds = max(0, operator.index(num_rounds))
        self._run.prepare(arrays, num_rounds if isinstance(num_rounds, int) else None)

    def _strategy_failed(self, error: Exception) -> None:
        self._failed("the strategy failed", error)

    def _failed(self, what: str, why: Exception | str, index: int | None = None) -> None:
        """Note a failure, in the run's next round by default; not even this may end a run."""
        try:
            self._log.failed(self._run.index if index is None else index, what, why)
        except Exception as error:  # noqa: BLE001 - of the log itself
            self._log.faults.append(f"{what}: {why}; it could not be logged: {error}")

    def _rescue(self, name: str, error: Exception) -> list[Message]:
        """Replies of clients that were not asked, where the audit failed before it was scored."""
        self._failed(f"{name} goes on without the audit", error)
        state, self._turn = self._turn, None
        if name != "aggregate_train" or state is None:
            return []
        try:
            return self._asked_late(state)
        except Exception as late:  # noqa: BLE001 - the run goes on
            self._failed("clients could not be asked late", late)
            return []

    def attach(self) -> Strategy:
        """Hook the strategy's own instance, and return it: whoever runs it is audited.

        Needs ``rounds`` where the server makes the canaries up.

        Raises:
            AttributeError: if the instance takes no attributes (``__slots__``).
        """
        self._hooks.attach()
        return self.strategy

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Any:
        """The strategy's messages; less those to clients that canaries replace."""
        if (own := self._hooks.replaced("configure_train")) is not None:
            return own(server_round, arrays, config, grid)
        self._turn = None
        given: Any = self._hooks.call("configure_train", server_round, arrays, config, grid)
        if not isinstance(given, Iterable):
            return given  # whatever the strategy's own loop expects
        messages = list(given)
        try:
            self._turn = self._run.open_round(arrays, messages, grid)
        except Exception as error:  # noqa: BLE001 - the run goes on
            self._failed("the round cannot be audited", error)
        return messages if self._turn is None else self._turn.sent

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """What the strategy makes of the replies and the canaries', and ε so far."""
        if (own := self._hooks.replaced("aggregate_train")) is not None:
            return own(server_round, replies)
        real, state = list(replies), self._turn
        joined = self._join(state, real)
        result, seen = self._aggregate(server_round, state, real, joined)
        self._turn = None
        return self._close(state, result, seen)

    def _join(self, state: RoundState | None, real: list[Message]) -> list[Message]:
        if state is None:
            return real
        try:
            joined = self._run.join(state, real)
            if state.made_up or not state.withheld:
                return joined
        except TooManyCanariesError as error:
            self._failed("no canary takes part", str(error))
        except Exception as error:  # noqa: BLE001 - the run goes on
            self._failed("no canary joined the round", error)
        state.without_canaries()
        return [*real, *self._asked_late(state)]

    def _asked_late(self, state: RoundState) -> list[Message]:
        """The replies of clients that canaries were to replace."""
        withheld, state.withheld = state.withheld, []
        if state.grid is None or not withheld:
            return []
        return list(state.grid.send_and_receive(withheld, timeout=self._timeout))

    def _aggregate(
        self,
        server_round: int,
        state: RoundState | None,
        real: list[Message],
        joined: list[Message],
    ) -> tuple[Any, Aggregation | None]:
        """The strategy's own aggregation; if it fails on canaries, again without them."""
        if state is None or not state.made_up:
            return self._call(server_round, joined, state)
        failure: Exception | str = "it released no model"
        undo = Undo(self._wrapped.layers, deep=not self._accepted)
        try:
            result, seen = self._call(server_round, joined, state)
            own = any(reply.has_error() for reply in real)  # why there may be no model
            if own or not isinstance(result, tuple) or result[0] is not None:
                self._accepted = True
                return result, seen
        except Exception as error:  # noqa: BLE001 - canaries may be why
            failure = error
        undo.restore()
        late = self._asked_late(state)
        state.without_canaries()
        result, seen = self._call(server_round, [*real, *late], state)
        if isinstance(failure, Exception) or result[0] is not None:
            self._failed(f"the strategy fails on canaries ({self._run.source.rejected()})", failure)
        return result, seen

    def _call(
        self, server_round: int, replies: list[Message], state: RoundState | None
    ) -> tuple[Any, Aggregation | None]:
        made_up = state.made_up if state else []
        seen, used = None, set[int]()
        with contextlib.ExitStack() as stack:
            try:
                used = stack.enter_context(real_metrics_only(self._wrapped.base, made_up))
                if self._run.must_watch and len(self._wrapped.layers) > 1:
                    seen = stack.enter_context(watch_aggregation(self._wrapped.base))
            except Exception as error:  # noqa: BLE001 - the run goes on
                self._failed("the strategy cannot be watched", error)
            result = self._hooks.call("aggregate_train", server_round, replies)
        if state is not None:
            state.replies = readable(replies)
            known = {id(reply.content) for reply in state.replies}
            state.used = used if used and used <= known else None
        if seen is None and isinstance(result, tuple):
            seen = Aggregation(readable(replies), result[0])
        return result, seen

    def _close(self, state: RoundState | None, result: Any, seen: Aggregation | None) -> Any:
        index = self._run.index
        if self._run.over is not None:
            return result
        try:
            arrays, metrics = result
            self._run.close_round(state, arrays, seen, _loss(metrics))
            return arrays, self._with_epsilon(arrays, metrics)
        except Exception as error:  # noqa: BLE001 - the run goes on
            self._failed("the round could not be scored", error, index)
            return result

    def _with_epsilon(
        self, arrays: ArrayRecord | None, metrics: MetricRecord | None
    ) -> MetricRecord | None:
        if not arrays or not isinstance(metrics, (MetricRecord, type(None))):
            return metrics
        out = MetricRecord(dict(metrics.items()) if metrics else {})
        for name, estimate in self._run.epsilons().items():
            out[f"epsilon-{name}"] = estimate.epsilon
            out[f"epsilon-{name}-low"] = estimate.low
            out[f"epsilon-{name}-high"] = estimate.high
        return out if out else metrics

    @property
    def summary(self) -> Any:
        """The strategy's."""
        return self.strategy.summary

    @property
    def configure_evaluate(self) -> Any:
        """The strategy's."""
        return self.strategy.configure_evaluate

    @property
    def aggregate_evaluate(self) -> Any:
        """The strategy's."""
        return self.strategy.aggregate_evaluate

    @property
    def faults(self) -> list[str]:
        """What went wrong so far: clients that failed, rounds that were not audited and why."""
        try:
            return self._run.faults()
        except Exception as error:  # noqa: BLE001 - what is known is said
            return [*self._log.faults, f"the faults are incomplete: {error}"]

    def record(self) -> AuditRecord:
        """What the run leaves behind so far, for every estimate and bound.

        A run in which fewer than two canaries took part has a record, and no ε.

        Raises:
            ValueError: if the audit saw no model that it could read, with the reason.
        """
        try:
            return self._run.record()
        except ValueError as error:
            reasons = "; ".join(self._log.faults[:3])
            raise ValueError(f"{error} {reasons}".strip()) from error

    def report(self, directory: str | Path | None = None) -> str:
        """The report as text; with a ``directory``, also record.npz, report.json and report.html.

        Never raises: where nothing was measured it says so and why, and where a file cannot be
        written the text says that.
        """
        problems: list[str] = []
        for write in (self._report, self._unmeasured_report):
            try:
                return "\n".join([write(directory), *problems])
            except Exception as error:  # noqa: BLE001 - training is over and must not be lost
                if self._run.index == 0:
                    continue  # there is nothing to report
                problems.append(f"The report is incomplete: {type(error).__name__}: {error}")
                self._failed("the report could not be made", error, max(0, self._run.index - 1))
        with contextlib.suppress(Exception):
            return "\n".join([self._unmeasured_report(None), *problems])
        return "\n".join(["ε: not measured", *problems, *self._log.faults])

    def _report(self, directory: str | Path | None) -> str:
        from fl_epe.reporting import as_text, summarize, write_report  # slow to import

        record = self.record()
        if directory is None:
            return as_text(summarize(record))
        folder, lost = Path(directory), list[str]()
        writers: dict[str, Callable[[], object]] = {
            "record.npz": lambda: record.save(folder / "record.npz"),
            "the report's files": lambda: write_report(record, folder),
        }
        for name, write in writers.items():
            try:
                write()
            except OSError as error:  # what is measured is said, whatever the disk does
                self._failed(f"{name} could not be written", error, max(0, self._run.index - 1))
                lost.append(f"{name} could not be written: {error}")
        return "\n".join([as_text(summarize(record)), *lost])

    def _unmeasured_report(self, directory: str | Path | None) -> str:
        from fl_epe.reporting import as_text, summarize_unmeasured, write_unmeasured

        known: dict[str, Any] = {"delta": self.delta, "faults": self._log.faults}
        known["fault_counts"] = self._log.fault_counts
        with contextlib.suppress(Exception):  # the reason is said without it
            known["config"] = self._run.config()
        reason = self._log.first_failure or "the audit saw no round"
        if directory is None:
            return as_text(summarize_unmeasured(reason, **known))
        return as_text(write_unmeasured(Path(directory), reason, **known))


def _loss(metrics: MetricRecord | None) -> float | None:
    """The clients' training loss among the metrics of a round; ``None`` if there is none."""
    for name in ("train_loss", "train-loss", "loss"):
        value = metrics.get(name) if metrics else None
        if isinstance(value, int | float):
            return float(value)
    return None
