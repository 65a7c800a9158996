"""`DPSGDAudit` measures how much a run of DP-SGD leaks about one example, in that run itself.

No error of the audit ends training: it is reported once, and the run continues without the
audit.
"""

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from fl_epe import auditing
from fl_epe.archive import error_text
from fl_epe.checks import Booleans, Vector
from fl_epe.dp_sgd.clipping import BatchSeen
from fl_epe.dp_sgd.optimizers import StepFacts, Steps
from fl_epe.dp_sgd.seen_steps import SeenSteps, call_or_undo, hooked
from fl_epe.dp_sgd.step_checks import StepFindings
from fl_epe.loggers import Loggers
from fl_epe.mechanism import norm
from fl_epe.noise import Check, sentences
from fl_epe.schedules import Cohort, Coins, Events, ParticipationLaw

logger = logging.getLogger(__name__)

# A larger share of canaries in a batch is reported as a warning.
_LARGE_SHARE = 0.1
# In one of every 50 steps, canaries add nothing to the entries in which no example has a gradient.
_UNTOUCHED_EVERY = 50


@dataclasses.dataclass(frozen=True, eq=False)
class _JoinedStep:
    """A step that canaries have joined.

    Attributes:
        facts: the parameters of the step.
        batches: the batches that were clipped for it.
        cohort: the ids of its canaries.
        untouched: for each entry, whether neither an example nor a canary has a gradient there.
        canary_sum: the sum of the canaries' gradients, shape ``(dim,)``.
        sum_with_canaries: the clipped sum with the canaries, before the noise, shape ``(dim,)``.
        undo: a function that removes the canaries from the clipped sum.
    """

    facts: StepFacts
    batches: list[BatchSeen]
    cohort: Cohort
    untouched: Booleans
    canary_sum: Vector
    sum_with_canaries: Vector
    undo: Callable[[], None]


class DPSGDAudit:
    """The audit that `audit_dp_sgd` returns: a context for training, and then its results.

    The noisy gradient of every step is scored against all canaries. As in every audit, the
    released mean has the sign of the model's movement: it is minus the mean gradient, and a
    canary's gradient is minus its direction.

    Attributes:
        delta: the target δ.
    """

    def __init__(
        self,
        steps: Steps,
        auditor: auditing.RunAuditor,
        cohorts: Callable[[int], Cohort],
        design: dict[str, Any],
        plan: str,
        loggers: Loggers,
    ) -> None:
        self._steps = steps
        self._auditor = auditor
        self._cohorts = cohorts
        self._design = design
        self._plan = plan
        self._loggers = loggers
        self.delta = auditor.delta
        self._active = False
        self._stopped: str | None = None  # why the audit ended before the run
        self._final: Vector | None = None  # the model after training
        self._has_begun = False
        self._hooks = contextlib.ExitStack()
        self._facts: list[StepFacts] = []  # of the scored steps
        self._seen = SeenSteps(steps.tensor_sizes)

    def __enter__(self) -> Self:
        """Store the initial model, and hook the optimizer, so that canaries join the next steps.

        Raises:
            ValueError: if the audit has been entered before.
        """
        if self._has_begun:
            raise ValueError(
                "Expected a new audit_dp_sgd: this one has audited a run. For the rounds of a"
                " federation use fl_epe.audit_records."
            )
        self._auditor.begin(self._steps.model())
        self._active = True
        self._has_begun = True
        self._hooks.enter_context(
            hooked(
                self._steps.optimizer,
                clip=self._clip,
                add_noise=self._add_noise,
                step=self._step,
            )
        )
        is_large = self._design["share"] > _LARGE_SHARE
        level = logging.WARNING if is_large else logging.INFO
        logger.log(level, "Audit: %s", self._plan)
        return self

    def __exit__(self, *_: object) -> None:
        self._active = False
        with self._ending_audit_on_error("the final model could not be read"):
            self._hooks.close()
            self._final = self._steps.model()
            self._seen.movement.count_change(self._final)
            for fault in self.findings.faults:
                logger.warning("Audit: %s", fault)

    @contextlib.contextmanager
    def _ending_audit_on_error(self, failure: str) -> Iterator[None]:
        """If an error is raised in this context, report the failure and go on without the audit."""
        try:
            yield
        except Exception as error:
            text = f"{failure}: {error_text(error)}"
            step = self._auditor.rounds
            self._stopped = self._stopped or f"step {step + 1}, {text}"
            self._active = False
            text += "; the run goes on without the audit"
            self._auditor.faults.add(
                step, auditing.FaultKind.AUDIT_STOOD_BACK, text
            )
            logger.warning("Audit, step %d, %s", step + 1, text)
            logger.debug("Where it happened", exc_info=error)

    def _clip(self, clip: Callable[[], None]) -> None:
        """Replaces the optimizer's clipping of a batch, which is observed."""
        if self._active:
            self._seen.clip(self._steps, clip)
        else:
            clip()

    def _step(
        self, step: Callable[..., Any], *args: Any, **options: Any
    ) -> Any:
        """Replaces the optimizer's ``step``, whose movement of the model is checked."""
        outcome = step(*args, **options)
        if self._active:
            with self._ending_audit_on_error(
                "the movement of the model could not be checked"
            ):
                self._seen.movement.end(self._steps.model())
        return outcome

    def _add_noise(self, add_noise: Callable[[], None]) -> None:
        """Replaces the optimizer's ``add_noise``: canaries join before the noise."""
        step: _JoinedStep | None = None
        if self._active:
            with self._ending_audit_on_error("canaries could not join"):
                step = self._join_canaries()
        call_or_undo(add_noise, None if step is None else step.undo)
        if step is not None:
            with self._ending_audit_on_error("the step could not be scored"):
                self._score(step)
                self._log(step.facts.clip_norm)

    def _join_canaries(self) -> _JoinedStep:
        """Add the canaries of the present step to its clipped sum."""
        facts = self._steps.facts()
        batches = self._seen.take_batches()
        cohort = self._cohorts(facts.batches)
        canary_sum = self._canary_sum(cohort, facts.clip_norm)
        # In some steps, canaries must not hide whether noise is added to the entries in which no
        # example has a gradient.
        untouched = self._steps.clipped() == 0
        untouched &= self._auditor.rounds % _UNTOUCHED_EVERY == 0
        canary_sum[untouched] = 0
        sum_with_canaries, undo = self._steps.join(canary_sum)
        return _JoinedStep(
            facts,
            batches,
            cohort,
            untouched,
            canary_sum,
            sum_with_canaries,
            undo,
        )

    def _canary_sum(self, cohort: Cohort, clip_norm: float) -> Vector:
        """The sum of the cohort's gradients, shape ``(dim,)``."""
        ones = np.ones((1, len(cohort)))
        total = self._auditor.canaries.combine(ones, numbers=cohort.tolist())
        return np.asarray(np.float32(-clip_norm) * total[0])

    def _score(self, step: _JoinedStep) -> None:
        """Score the residual against all canaries, and check the step.

        The residual is the noise for an adversary with full knowledge, and otherwise the noisy
        sum without the canaries.
        """
        noisy_sum = self._steps.noisy()
        noise = noisy_sum - step.sum_with_canaries
        residual = noise
        if not self._design["full_knowledge"]:
            residual = noisy_sum - step.canary_sum
        batch_size = self._steps.batch_size
        mean = np.asarray(residual, np.float32) / np.float32(-batch_size)
        present = step.cohort.tolist()
        num_lost = 0
        is_finite = math.isfinite(norm(mean))
        if not is_finite:  # the step counts as lost
            mean = np.zeros_like(mean)
            num_lost = len(present)
            present = []
        clip_norm = step.facts.clip_norm
        self._auditor.observe(
            None,
            auditing.RoundFacts(
                present,
                contribution=clip_norm / batch_size,
                clip_norm=clip_norm,
                replies=batch_size,
                absent=num_lost,
            ),
            released={"others": mean},
        )
        self._facts.append(step.facts)
        if is_finite:
            self._seen.add(
                self._steps, step.facts, step.batches, noise, step.untouched
            )
        else:
            self._auditor.faults.add(
                self._auditor.rounds - 1,
                auditing.FaultKind.NO_MODEL_RELEASED,
                "the noisy gradient has NaN or infinite entries",
            )

    def _log(self, clip_norm: float) -> None:
        """Pass the numbers so far to the loggers."""
        if self._loggers:
            values = self._auditor.metrics_so_far()
            values |= {
                "clip_norm": clip_norm,
                "canaries_seen": self._auditor.canaries_seen,
                "fault_count": self._auditor.faults.total,
            }
            self._loggers.log(self._auditor.rounds, values, resumed=False)

    @property
    def faults(self) -> list[str]:
        """The faults so far, in sentences."""
        return self._auditor.faults.messages

    @property
    def findings(self) -> StepFindings:
        """The differences between the steps so far and what their privacy accounting assumes."""
        return self._findings(self._seen.noise)

    def _findings(self, noise: list[Check]) -> StepFindings:
        """`findings`, from the checks of the noise."""
        steps = self._steps
        return self._seen.findings(
            steps.sample_rate or self._design["sample_rate"],
            float(steps.optimizer.expected_batch_size or math.nan),
            is_sampled=self._design["participations"] is None,
            noise=noise,
        )

    def record(self) -> auditing.AuditRecord:
        """The record of the run so far, for every estimate and bound.

        Raises:
            ValueError: if the audit has not been entered.
        """
        if not self._has_begun:
            raise ValueError(
                "Expected `with audit_dp_sgd(…) as audit:` around training first."
            )
        mechanism = self._mechanism()
        noise = self._seen.noise
        findings = self._findings(noise)
        # With full knowledge the residual of a step is its noise, which is drawn anew in each step.
        has_independent_residuals = self._design["full_knowledge"]
        unbounded = None
        if has_independent_residuals and findings.unbounded:
            unbounded = f"{findings.unbounded}, so ε of every round is infinite"
            has_independent_residuals = False
        unseen = [f"Not checked: {text}." for text in findings.unseen]
        record = self._auditor.record(
            final=self._steps.model() if self._final is None else self._final,
            mechanism=mechanism,
            design=auditing.Design.of(self._design),
            findings=auditing.Findings(
                plan=(self._plan, *unseen),
                missing_canaries_reason=self._stopped,
                mechanism_faults=findings.faults,
                noise=sentences(noise),
                unbounded=unbounded,
                unchecked_assumptions=findings.unseen,
            ),
        )
        # A step's residual depends on its own noise alone, so the factor has one column of ones.
        factor = None
        if has_independent_residuals:
            factor = np.ones((record.rounds, 1))
        # Only without momentum is a model update the mean times a learning rate.
        learning_rates = mechanism.server.learning_rates
        if learning_rates is None or self._steps.momentum:
            learning_rates = np.ones(len(self._facts))
        norms = dataclasses.replace(
            record.norms, model_updates=learning_rates * record.norms.means
        )
        return dataclasses.replace(
            record,
            correlation=auditing.RoundCorrelation(factor),
            norms=norms,
        )

    def _mechanism(self) -> auditing.Mechanism:
        """The mechanism of the steps so far."""
        steps = self._steps
        facts = self._facts
        learning_rates = np.array([step.learning_rate for step in facts])
        server = auditing.ServerStep(steps.description)
        # After an audit that ended early, the model has moved by steps that are not recorded.
        momentum = None if self._stopped else steps.momentum
        if momentum is not None and np.isfinite(learning_rates).all():
            server = auditing.ServerStep("sgd", learning_rates, momentum)
        law = self._participation_law()
        return auditing.Mechanism(
            cohort_size=steps.batch_size,
            noise_multiplier=_common_value(
                [step.noise_multiplier for step in facts]
            ),
            sum_noise_multiplier=_common_value(
                [step.sum_noise_multiplier for step in facts]
            ),
            participation=law.in_record(),
            canary_participations=law.participations or 0.0,
            server=server,
            clip_norms=np.array([step.clip_norm for step in facts], np.float64),
        )

    def _participation_law(self) -> ParticipationLaw:
        """The law by which an example, or a canary, takes part in the steps so far."""
        facts = self._facts
        sample_rate = self._design["sample_rate"]
        if sample_rate is None:
            participations = self._design["participations"]
            return ParticipationLaw(
                len(facts),
                participations,
                math.ceil(participations),
                unit="example",
            )
        chances = np.array(
            [min(1.0, step.batches * sample_rate) for step in facts]
        )
        return ParticipationLaw(
            len(facts),
            float(chances.sum()),
            unit="example",
            hidden=bool(chances.min(initial=1.0) < 1),
            adjacency="add-or-remove",
            coins=Coins(len(facts), float(chances.max(initial=0.0))),
            events=Events.coins(chances),
        )

    def epsilon(
        self, delta: float | None = None, **options: Any
    ) -> auditing.EpsilonEstimate:
        """ε of the run: `epsilon_from_record` of `record`.

        The options are those of that function. By default, δ is the audit's, and the adversary
        is that of the run's privacy accounting.
        """
        return auditing.epsilon_from_record(self.record(), delta, **options)

    def report(
        self, directory: str | Path | None = None, *, details: bool = False
    ) -> str:
        """The report as text; with a ``directory``, also record.npz, report.json and report.html.

        It never raises an error. If the report fails, the text names the error and the faults.

        Args:
            directory: the folder in which the files are written.
            details: whether the text has everything on the page, or only the answer and warnings.
        """
        try:
            # This package is slow to import.
            from fl_epe.reporting import as_text, summarize, write_report

            record = self.record()
            summary = summarize(record)
            lines = [as_text(summary, details=details).rstrip()]
            folder = None
            if directory is not None:
                folder = Path(directory)
                record.save(folder / "record.npz")
                write_report(summary, folder)
                lines.append(f"Report: {folder / 'report.html'}")
            self._loggers.close(summary.metrics(), folder)
            return "\n".join(lines)
        except Exception as error:  # noqa: BLE001 - training is over and must not be lost
            return "\n".join(
                [f"The report is incomplete: {error}", *self.faults]
            )


def _common_value(values: list[float]) -> float | None:
    """The value that all have, or ``None`` if they differ."""
    if len(set(values)) == 1:
        return values[0]
    return None
