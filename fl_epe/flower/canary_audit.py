"""`CanaryAudit`: audits a deployment by wrapping its strategy.

Pass ``CanaryAudit(strategy, delta=1e-5)`` to Flower instead of the strategy, and call
`CanaryAudit.report` after the run.
"""

import contextlib
import functools
import inspect
import math
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_epe.auditing import AuditRecord
from fl_epe.checks import raise_invalid
from fl_epe.flower.audited_run import AuditedRun
from fl_epe.flower.audited_strategy import (
    AuditedStrategy,
    arguments_of,
    base_arguments,
)
from fl_epe.flower.phase import Over, current_round
from fl_epe.flower.replies import losses_of, readable
from fl_epe.flower.round_metrics import epsilons, rename_ours
from fl_epe.flower.round_state import Aggregation, RoundState, StrategyCall
from fl_epe.flower.run_report import log_round, report
from fl_epe.flower.settings import CanaryAuditSettings, SettingsError
from fl_epe.flower.undo import Depth, Undo
from fl_epe.flower.watching import real_metrics_only, watch_aggregation
from fl_epe.flower.wrapped import Wrapped


class CanaryAudit(AuditedStrategy):
    """Audits any message-API strategy, which works as before while canaries take part.

    Each canary's update is a random direction with the norm of a real client's update. This is
    the clip norm, to which the strategy's own clipping scales it, or else the median norm of
    the real updates. If the clip norm is far above the norms of the real updates and of the
    noise, the larger of these norms is used instead. The cosines of every round's model update,
    and of the final model, with those directions measure how much a client leaks (Andrew et al.
    2024).

    Nothing else changes: messages to real clients, their replies and the aggregated metrics are
    as without the audit. ``epsilon-all`` (with ``-low`` and ``-high``, 95%) is added to each
    round's metrics, and the theoretical bound ``epsilon-analytical``, if it is known. In
    addition, ``epsilon-unreliable`` and ``epsilon-faulty`` are 0 or 1. A client's metric with
    such a name is renamed. After the last round of a run of known length, the metrics are those
    of the report (`fl_epe.auditing.answers`), and there is ``epsilon-final``.

    The first round decides the number of canaries, at most 10% of replies on average. Some take
    part as often as a client, the others half as often, a quarter as often, and so on. With
    fewer than ten clients, there is a canary in some of the rounds, with up to a sixth of
    replies if the noise is known. The adversary is assumed to know the rounds: no privacy is
    claimed from sampling.

    Canaries' replies are added if the strategy accepts any number of replies. Flower's DP
    wrappers add noise for ``num_sampled_clients`` replies: canaries fill up to that number, and
    beyond it they replace clients that are drawn at random, but none of the clients with the
    largest weights. A replaced client is not asked in that round. In the first of several
    rounds, no client is replaced, as the weights are not known yet.

    A run with the audit ends whenever the run without it would. If the audit raises an error,
    the strategy gets the round as without an audit (clients that a canary was to replace are
    asked after all), no canary counts as present, and the reason is a fault in the report. If
    the strategy fails on replies of nodes that it did not ask, the round is repeated without
    them. From then on canaries replace clients, and if the strategy fails again there are no
    more canaries.

    ``start`` calls the strategy's own ``start`` with the audit's hooks on that instance, so that
    a strategy's own loop is audited too. The canaries are spread over ``rounds``. The default is
    the ``num_rounds`` of this call, or of Flower's own ``start`` if the strategy calls that. A
    user who starts more than once, each time with the last model, has to pass ``rounds``, the
    number of rounds of all starts together: later rounds are not measured. A single round is
    only measured with ``rounds=1``.

    ``attach`` sets the hooks for any other caller, and returns the strategy. This needs
    ``rounds`` if replies are synthetic and Flower's own ``start`` does not run. Attributes that
    an audit does not have are the strategy's.

    Args:
        strategy: the strategy of the deployment, including DP wrappers.
        settings: the fields of `CanaryAuditSettings`, as keyword arguments; ``delta`` has no
            default.

    Raises:
        TypeError: for a strategy of another API, or an unknown argument.
        ValueError: for an argument out of range, or a strategy that cannot be audited honestly.
            ``start`` raises it before the first round, if there are more than ``rounds``
            rounds, if ``participations`` do not fit into them, or if an argument differs from
            that of the audit in the checkpoint.
    """

    # The signature for help and editors.
    __signature__ = inspect.Signature(
        [
            inspect.Parameter(
                "strategy", inspect.Parameter.POSITIONAL_OR_KEYWORD
            ),
            *inspect.signature(CanaryAuditSettings).parameters.values(),
        ]
    )

    def __init__(self, strategy: Strategy, **settings: Any) -> None:
        self._timeout: float = 3600
        # Copies are deep until the strategy has accepted canaries.
        self._undo_depth: Depth = "deep"
        # The error of the settings names a missing δ.
        arguments = {"delta": None, **settings}
        self._run = AuditedRun(
            Wrapped(strategy), CanaryAuditSettings(**arguments)
        )
        super().__init__(
            strategy,
            self._run.report_failure,
            is_enabled=self._run.settings.enabled,
        )

    def _start_audited(self, *arguments: Any, **named: Any) -> Any:
        try:
            self._prepare(arguments_of(self.strategy.start, arguments, named))
        except Exception as error:
            if isinstance(error, SettingsError) and self._run.state.index == 0:
                raise
            self._run.report_failure("the audit could not prepare", error)
        try:
            return self._start_hooked(*arguments, **named)
        finally:
            with self._noting_failure("the checkpoint's folder stays locked"):
                self._run.checkpoint.close()

    def _prepare(self, values: Mapping[str, Any]) -> None:
        """Prepare the audit with the values of the arguments of ``start``."""
        timeout = values.get("timeout")
        if isinstance(timeout, (int, float)):
            self._timeout = timeout
        num_rounds = None
        # A number of another type is left to the strategy.
        with contextlib.suppress(LookupError, TypeError):
            num_rounds = max(0, operator.index(values["num_rounds"]))
        initial = values.get("initial_arrays")
        if not isinstance(initial, ArrayRecord):
            initial = None
        self._run.prepare(initial, num_rounds)

    def _rescue(self, name: str, error: Exception) -> list[Message]:
        """Report that the audit's function ``name`` failed, and leave the round.

        Returns:
            The replies of the clients that canaries were to replace in the round.
        """
        super()._rescue(name, error)
        current = self._run.leave_round()
        if name == "aggregate_train" and current is not None:
            with self._noting_failure("clients could not be asked late"):
                return self._ask_withheld(current)
        return []

    @property
    def canary_settings(self) -> CanaryAuditSettings:
        """The settings of the audit."""
        return self._run.settings

    def _configure_audited(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Any:
        """The strategy's messages, without those to clients that canaries replace."""
        run = self._run
        run.leave_round()
        messages: Any = self._hooks.call(
            "configure_train", server_round, arrays, config, grid
        )
        if not isinstance(messages, Iterable):
            # This strategy's own loop uses another type, which the audit does not know.
            return messages
        messages = list(messages)
        with (
            self._timed(),
            self._noting_failure("the round cannot be audited"),
        ):
            if run.state.index == 0 and run.state.rounds is None:
                self._prepare(base_arguments(self.strategy))
            run.open_round(arrays, messages, grid)
        current = current_round(run.phase)
        if current is None:
            return messages
        return current.sent

    def _aggregate_audited(
        self, server_round: int, replies: list[Message]
    ) -> Any:
        """The strategy's aggregate of the clients' and canaries' replies, and ε so far."""
        run = self._run
        current = current_round(run.phase)
        with self._timed():
            if current is None:
                result = self._hooks.call(
                    "aggregate_train", server_round, replies
                )
            else:
                result = self._aggregate_canaries(
                    server_round, current, replies
                )
        run.leave_round()
        if not isinstance(run.phase, Over):
            failure = "the round could not be scored"
            with self._timed(), run.noting_failure(failure, run.state.index):
                arrays, metrics = result
                metrics = rename_ours(run, metrics)
                result = arrays, metrics
                losses = losses_of([metrics or {}])
                run.close_round(current, arrays, losses[0] if losses else None)
                result = arrays, self._with_epsilon(arrays, metrics)
                log_round(run, current, result[1])
        return result

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Add the time in this context to the round's, without that of the strategy's calls."""
        run = self._run
        index = run.state.index
        began = time.perf_counter()
        strategy_seconds = self._hooks.seconds
        try:
            yield
        finally:
            if not isinstance(run.phase, Over):
                strategy_seconds = self._hooks.seconds - strategy_seconds
                seconds = time.perf_counter() - began - strategy_seconds
                run.state.notes_on(index).seconds += seconds

    def _join(self, current: RoundState, real: list[Message]) -> list[Message]:
        """The replies with those of the canaries, or without canaries if they cannot join."""
        with self._noting_failure("no canary joined the round"):
            joined = self._run.join(current, real)
            if current.canaries.synthetic or not current.withheld:
                return joined
        return self._without_canaries(current, real)

    def _without_canaries(
        self, current: RoundState, real: list[Message]
    ) -> list[Message]:
        """The replies without canaries, for which the replaced clients are asked after all."""
        current.remove_canaries()
        return [*real, *self._ask_withheld(current)]

    def _ask_withheld(self, current: RoundState) -> list[Message]:
        """Send the withheld messages, and return the replies."""
        withheld = current.withheld
        current.withheld = []
        if not withheld:
            return []
        return list(
            current.grid.send_and_receive(withheld, timeout=self._timeout)
        )

    def _aggregate_canaries(
        self, server_round: int, current: RoundState, real: list[Message]
    ) -> Any:
        """The strategy's own aggregation, repeated without canaries if it fails on them."""
        joined = self._join(current, real)
        if not current.canaries.synthetic:
            return self._aggregate_observed(server_round, current, joined)
        failure: Exception | str = "it released no model"
        undo = Undo(self._run.wrapped.layers, real, depth=self._undo_depth)
        try:
            result = self._aggregate_observed(server_round, current, joined)
            # If a client's reply is an error, that may be why there is no model.
            has_errors = any(reply.has_error() for reply in real)
            is_result = isinstance(result, tuple)
            if has_errors or not is_result or result[0] is not None:
                self._undo_depth = "shallow"
                return result
        except Exception as error:  # noqa: BLE001 - canaries may be the reason
            failure = error
        undo.restore()
        all_real = self._without_canaries(current, real)
        result = self._aggregate_observed(server_round, current, all_real)
        if isinstance(failure, Exception) or result[0] is not None:
            self._run.reject(failure)
        # The error's traceback refers to this frame, which would keep the round's messages in
        # memory.
        failure = ""
        return result

    def _aggregate_observed(
        self, server_round: int, current: RoundState, replies: list[Message]
    ) -> Any:
        """The strategy's own aggregation; the round stores what was observed of it."""
        wrapped = self._run.wrapped
        innermost = None
        noise_std = None
        # The contents of the replies of which the strategy aggregated the metrics.
        used = set[int]()
        with contextlib.ExitStack() as stack:
            with self._noting_failure("the strategy cannot be watched"):
                synthetic = current.canaries.synthetic
                used = stack.enter_context(
                    real_metrics_only(wrapped.base, synthetic)
                )
                noise_std = wrapped.noise_std()
                if len(wrapped.layers) > 1:
                    innermost = stack.enter_context(
                        watch_aggregation(wrapped.base)
                    )
            result = self._hooks.call("aggregate_train", server_round, replies)
        answered = readable(replies)
        if innermost is None and isinstance(result, tuple):
            innermost = Aggregation(answered, result[0])
        # A strategy that passes on copies of the contents does not show which it used.
        shows_used = bool(used) and used <= {
            id(reply.content) for reply in answered
        }
        current.call = StrategyCall(
            answered, used if shows_used else None, innermost, noise_std
        )
        return result

    def _with_epsilon(
        self, arrays: ArrayRecord | None, metrics: MetricRecord | None
    ) -> MetricRecord | None:
        """The metrics with ε, if the round released a model."""
        if not arrays or not isinstance(metrics, (MetricRecord, type(None))):
            return metrics
        out = MetricRecord(dict(metrics or {}))
        out.update(epsilons(self._run))
        if out:
            return out
        return metrics

    @property
    def faults(self) -> list[str]:
        """The faults so far, such as failed clients and rounds that were not audited."""
        try:
            return self._run.outcome.all_faults()
        except Exception as error:  # noqa: BLE001 - the known faults are returned
            messages = self._run.faults.book.messages
            return [*messages, f"the faults are incomplete: {error}"]

    def stop_when(self, *, epsilon: float) -> Callable[..., bool]:
        """A rule that ends the run as soon as the lower bound on ε is above ``epsilon``.

        Pass it to ``start(should_stop=…)`` if Flower's ``start`` has that argument, or call it
        in your own loop. It takes any arguments, never raises an error, and returns true once
        the lower end of ``epsilon-all`` is above ``epsilon``. This end holds after all rounds
        simultaneously, and so does the interval of a run that ended before its last round for
        any reason.

        Raises:
            ValueError: for an ``epsilon`` that is not finite and at least 0.
        """
        if not 0 <= epsilon < math.inf:
            raise_invalid("epsilon", epsilon, ">= 0 and finite")
        return functools.partial(self._run.stops_above, epsilon)

    def record(self) -> AuditRecord:
        """The record of the run so far, for every estimate and bound.

        A run in which fewer than two canaries took part has a record, but no ε.

        Raises:
            ValueError: if the audit saw no model that it could read, with the reason.
        """
        return self._run.record()

    def report(
        self, directory: str | Path | None = None, *, details: bool = False
    ) -> str:
        """The report as text; with a ``directory``, also record.npz, report.json and report.html.

        It never raises an error: if nothing was measured, the text says so and why, and if a
        file cannot be written, the text says that.

        Args:
            directory: the folder in which the files are written.
            details: whether the text has all notes, not only the results and warnings.
        """
        return report(
            self._run, None if directory is None else Path(directory), details
        )
