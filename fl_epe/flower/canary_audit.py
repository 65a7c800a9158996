"""`CanaryAudit`: audits a deployment by wrapping its strategy.

Hand ``CanaryAudit(strategy, delta=1e-5)`` to Flower in place of the strategy, and call
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
from fl_epe.flower import watching
from fl_epe.flower.audit_record import all_faults, log_round, report
from fl_epe.flower.audited_run import AuditedRun
from fl_epe.flower.audited_strategy import AuditedStrategy
from fl_epe.flower.replies import readable
from fl_epe.flower.round_metrics import epsilons, rename_ours
from fl_epe.flower.settings import CanaryAuditSettings, SettingsError
from fl_epe.flower.state import Aggregation, RoundState, losses_of
from fl_epe.flower.wrapped import Wrapped


class CanaryAudit(AuditedStrategy):
    """Audits any message-API strategy: it goes on as before, and canaries take part beside it.

    Each canary's update is a random direction, with the norm of a real client's: the clip norm,
    to which the strategy's own clipping brings it, or else the median norm of the real updates. A
    clip norm far above the real updates and the noise is not: the longer of the two counts.
    The cosines of every round's model update, and of the final model, with those directions
    measure what a client leaks (Andrew et al. 2024). Nothing else changes: messages to
    real clients, their replies and the aggregated metrics are as they were; ``epsilon-all`` (with
    ``-low`` and ``-high``, 95%) is added to each round's metrics, and ``epsilon-analytical``, what
    theory allows, if it is known. Beside them ``epsilon-unreliable`` and ``epsilon-faulty`` are 0
    or 1, and a client's metric of such a name is renamed. After the last round of a run whose
    length is known they are those of the report (`fl_epe.auditing.answers`), and there is
    ``epsilon-final``.

    The first round decides how many canaries there are, at most 10% of replies on average: some
    take part as often as a client, the others half as often, a quarter as often, and so on. Fewer
    than ten clients have a canary in some of their rounds, and up to a sixth of replies where the
    noise is known. Rounds are taken as known to the
    adversary: no privacy is claimed from sampling.

    Replies are added where any number will do. Flower's DP wrappers add noise for
    ``num_sampled_clients`` replies: canaries fill up to that number, and beyond it take the place
    of clients drawn at random, none of the heaviest, who are not asked in that round. In the first
    of several rounds, in which it is not known who these are, nobody is replaced.

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
        settings: the fields of `CanaryAuditSettings`, as keyword arguments; ``delta`` has no
            default.

    Raises:
        TypeError: for a strategy of another API, or an argument that there is not.
        ValueError: for an argument out of range, or a strategy that cannot be audited honestly.
    """

    __signature__ = inspect.Signature(  # for help and editors
        [
            inspect.Parameter("strategy", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *inspect.signature(CanaryAuditSettings).parameters.values(),
        ]
    )

    def __init__(self, strategy: Strategy, **settings: Any) -> None:
        self._turn: RoundState | None = None
        self._timeout: float = 3600
        self._accepted = False  # whether the strategy has taken canaries once
        given = {"delta": None, **settings}  # without one the error names it
        self._run = AuditedRun(Wrapped(strategy), CanaryAuditSettings(**given))
        super().__init__(strategy, self._run.failed)

    def start(self, *arguments: Any, **named: Any) -> Any:
        """The strategy's own ``start``, with the audit; takes and returns what that does.

        The canaries are spread over ``rounds``, by default its ``num_rounds``, or those of Flower's
        own ``start`` where it calls that. Who starts more than
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
        if not self._run.settings.enabled:
            return own(*arguments, **named)
        try:
            self._prepare(watching.arguments_of(own, arguments, named))
        except Exception as error:
            if isinstance(error, SettingsError) and self._run.index == 0:
                raise
            self._run.failed("the audit could not prepare", error)
        try:
            return self._start_hooked(own, *arguments, **named)
        finally:
            try:
                self._run.leave()
            except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
                self._run.failed("the checkpoint's folder stays locked", error)

    def _prepare(self, given: Mapping[str, Any]) -> None:
        num_rounds = None
        if isinstance(given.get("timeout"), (int, float)):
            self._timeout = given["timeout"]
        with contextlib.suppress(
            LookupError, TypeError
        ):  # of another kind: for the strategy
            num_rounds = max(0, operator.index(given["num_rounds"]))
        self._run.prepare(given.get("initial_arrays"), num_rounds)

    def _rescue(self, name: str, error: Exception) -> list[Message]:
        """Replies of clients that were not asked, where the audit failed before it was scored."""
        super()._rescue(name, error)
        state, self._turn = self._turn, None
        if name == "aggregate_train" and state is not None:
            with self._run.goes_on("clients could not be asked late"):
                return self._asked_late(state)
        return []

    @property
    def canary_settings(self) -> CanaryAuditSettings:
        """The arguments of the audit, with what follows from them."""
        return self._run.settings

    def attach(self) -> Strategy:
        """Hook the strategy's own instance, and return it: whoever runs it is audited.

        Needs ``rounds`` where replies are synthetic and Flower's own ``start`` does not run.

        Raises:
            AttributeError: if the instance takes no attributes (``__slots__``).
        """
        if self._run.settings.enabled:
            self._hooks.attach()
        return self.strategy

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Any:
        """The strategy's messages; less those to clients that canaries replace."""
        if (own := self._hooks.replaced("configure_train")) is not None:
            return own(server_round, arrays, config, grid)
        self._turn = None
        given: Any = self._hooks.call(
            "configure_train", server_round, arrays, config, grid
        )
        if not isinstance(given, Iterable):
            return given  # whatever the strategy's own loop expects
        messages = list(given)
        with self._timed(), self._run.goes_on("the round cannot be audited"):
            if self._run.index == 0 and self._run.rounds is None:
                self._prepare(watching.base_arguments(self.strategy))
            self._turn = self._run.open_round(arrays, messages, grid)
        return messages if self._turn is None else self._turn.sent

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """What the strategy makes of the replies and the canaries', and ε so far."""
        if (own := self._hooks.replaced("aggregate_train")) is not None:
            return own(server_round, replies)
        real, state = list(replies), self._turn
        with self._timed():
            result = (
                self._hooks.call("aggregate_train", server_round, real)
                if state is None
                else self._aggregate(server_round, state, real)
            )
        self._turn = None
        if self._run.over is None:
            with (
                self._timed(),
                self._run.goes_on("the round could not be scored", self._run.index),
            ):
                arrays, metrics = result
                metrics = rename_ours(self._run, metrics)
                result = arrays, metrics
                loss = next(iter(losses_of([metrics or {}])), None)
                self._run.close_round(state, arrays, loss)
                result = arrays, self._with_epsilon(arrays, metrics)
                log_round(self._run, state, result[1])
        return result

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Add the time of this context to the round's, without that of the strategy's calls."""
        index, began, own = self._run.index, time.perf_counter(), self._hooks.seconds
        try:
            yield
        finally:
            if self._run.over is None:
                own = self._hooks.seconds - own
                self._run.note(index).seconds += time.perf_counter() - began - own

    def _join(self, state: RoundState, real: list[Message]) -> list[Message]:
        with self._run.goes_on("no canary joined the round"):
            joined = self._run.join(state, real)
            if state.synthetic or not state.withheld:
                return joined
        state.without_canaries()
        return [*real, *self._asked_late(state)]

    def _asked_late(self, state: RoundState) -> list[Message]:
        withheld, state.withheld = state.withheld, []
        if not withheld:
            return []
        return list(state.grid.send_and_receive(withheld, timeout=self._timeout))

    def _aggregate(
        self, server_round: int, state: RoundState, real: list[Message]
    ) -> Any:
        """The strategy's own aggregation; if it fails on canaries, again without them."""
        joined = self._join(state, real)
        if not state.synthetic:
            return self._call(server_round, state, joined)
        failure: Exception | str = "it released no model"
        undo = watching.Undo(self._run.wrapped.layers, real, deep=not self._accepted)
        try:
            result = self._call(server_round, state, joined)
            own = any(reply.has_error() for reply in real)  # why there may be no model
            if own or not isinstance(result, tuple) or result[0] is not None:
                self._accepted = True
                return result
        except Exception as error:  # noqa: BLE001 - canaries may be why
            failure = error
        undo.restore()
        state.without_canaries()
        result = self._call(server_round, state, [*real, *self._asked_late(state)])
        if isinstance(failure, Exception) or result[0] is not None:
            self._run.reject(failure)
        failure = ""  # its traceback refers to this frame, and so to a round's messages
        return result

    def _call(
        self, server_round: int, state: RoundState, replies: list[Message]
    ) -> Any:
        base, state.seen, used = self._run.wrapped.base, None, set[int]()
        with contextlib.ExitStack() as stack:
            with self._run.goes_on("the strategy cannot be watched"):
                used = stack.enter_context(
                    watching.real_metrics_only(base, state.synthetic)
                )
                state.noise_std = self._run.wrapped.noise_std()
                if len(self._run.wrapped.layers) > 1:
                    state.seen = stack.enter_context(watching.watch_aggregation(base))
            result = self._hooks.call("aggregate_train", server_round, replies)
        state.replies = readable(replies)
        state.used = (
            used
            if used and used <= {id(reply.content) for reply in state.replies}
            else None
        )
        if state.seen is None and isinstance(result, tuple):
            state.seen = Aggregation(state.replies, result[0])
        return result

    def _with_epsilon(
        self, arrays: ArrayRecord | None, metrics: MetricRecord | None
    ) -> MetricRecord | None:
        if not arrays or not isinstance(metrics, (MetricRecord, type(None))):
            return metrics
        out = MetricRecord(dict(metrics or {}))
        out.update(epsilons(self._run))
        return out if out else metrics

    @property
    def faults(self) -> list[str]:
        """What went wrong so far: clients that failed, rounds that were not audited and why."""
        try:
            return all_faults(self._run)
        except Exception as error:  # noqa: BLE001 - what is known is said
            return [*self._run.faults.messages, f"the faults are incomplete: {error}"]

    def stop_when(self, *, epsilon: float) -> Callable[..., bool]:
        """A rule that ends the run as soon as ε is shown to be above ``epsilon``.

        Hand it to ``start(should_stop=…)`` where Flower's has that argument, or ask it in a loop of
        your own: it takes any arguments, never raises an error, and is true once the lower end of
        ``epsilon-all`` is above. That end holds after every round at once, and so does the interval
        of a run that ended before its last round, whatever ended it.

        Raises:
            ValueError: for an ``epsilon`` that is not finite and at least 0.
        """
        if not 0 <= epsilon < math.inf:
            raise_invalid("epsilon", epsilon, ">= 0 and finite")
        return functools.partial(self._run.stops_above, epsilon)

    def record(self) -> AuditRecord:
        """What the run leaves behind so far, for every estimate and bound.

        A run in which fewer than two canaries took part has a record, and no ε.

        Raises:
            ValueError: if the audit saw no model that it could read, with the reason.
        """
        return self._run.record()

    def report(
        self, directory: str | Path | None = None, *, details: bool = False
    ) -> str:
        """The report as text; with a ``directory``, also record.npz, report.json and report.html.

        Never raises: where nothing was measured it says so and why, and where a file cannot be
        written the text says that.

        Args:
            directory: where to write.
            details: all notes, not only what was found and warnings.
        """
        return report(
            self._run, None if directory is None else Path(directory), details
        )
