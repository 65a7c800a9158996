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
# In one of so many steps, canaries leave the entries without a gradient unchanged.
_UNTOUCHED_EVERY = 50


class DPSGDAudit:
    """The audit that `audit_dp_sgd` returns: a context for training, and then its results.

    The noisy gradient of every step is scored against all canaries. The released mean has the
    sign of the model's movement, as in every audit: it is minus the mean gradient, and a
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
        self._stopped: str | None = None
        self._final: Vector | None = None  # the model after training
        self._has_begun = False
        self._hooks = contextlib.ExitStack()
        self._facts: list[StepFacts] = []
        self._seen = SeenSteps(steps.tensor_sizes)

    def __enter__(self) -> Self:
        """Store the initial model, and let canaries join from the next step on.

        Raises:
            ValueError: if the audit has been entered before.
        """
        if self._has_begun:
            raise ValueError(
                "Expected a new audit_dp_sgd: this one has seen a run. For the rounds of a"
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
        """If an error is raised in this context, end the audit and report the failure."""
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
        if self._active:
            self._seen.clip(self._steps, clip)
        else:
            clip()

    def _step(
        self, step: Callable[..., Any], *args: Any, **options: Any
    ) -> Any:
        outcome = step(*args, **options)
        if self._active:
            with self._ending_audit_on_error(
                "what moved the model could not be found out"
            ):
                self._seen.movement.end(self._steps.model())
        return outcome

    def _add_noise(self, add_noise: Callable[[], None]) -> None:
        """Replaces the optimizer's ``add_noise``: canaries join before the noise."""
        undo = None
        if self._active:
            with self._ending_audit_on_error("canaries could not join"):
                facts = self._steps.facts()
                clipped = self._seen.take_batches()
                cohort = self._cohorts(facts.batches)
                gradient = self._gradient(cohort, facts.clip_norm)
                # Canaries must not hide whether noise is added to entries without a gradient.
                untouched = self._steps.clipped() == 0
                untouched &= self._auditor.rounds % _UNTOUCHED_EVERY == 0
                gradient[untouched] = 0
                summed, undo = self._steps.join(gradient)
        call_or_undo(add_noise, undo)
        if undo is not None:
            with self._ending_audit_on_error("the step could not be scored"):
                self._score(facts, cohort, clipped, gradient, summed, untouched)
                if self._loggers:
                    values = self._auditor.metrics_so_far()
                    values |= {
                        "clip_norm": facts.clip_norm,
                        "canaries_seen": self._auditor.canaries_seen,
                        "fault_count": self._auditor.faults.total,
                    }
                    self._loggers.log(
                        self._auditor.rounds, values, resumed=False
                    )

    def _gradient(self, cohort: Cohort, clip_norm: float) -> Vector:
        """The sum of the cohort's gradients, shape ``(dim,)``."""
        ones = np.ones((1, len(cohort)))
        total = self._auditor.canaries.combine(ones, numbers=cohort.tolist())
        return np.asarray(np.float32(-clip_norm) * total[0])

    def _score(
        self,
        facts: StepFacts,
        cohort: Cohort,
        clipped: list[BatchSeen],
        gradient: Vector,
        summed: Vector,
        untouched: Booleans,
    ) -> None:
        """Score what the adversary cannot subtract: the noise, or all but the canaries."""
        noisy = self._steps.noisy()
        batch_size = self._steps.batch_size
        noise = noisy - summed
        residual = noise if self._design["full_knowledge"] else noisy - gradient
        mean = np.asarray(residual, np.float32) / np.float32(-batch_size)
        is_finite = math.isfinite(norm(mean))
        present = cohort.tolist()
        lost = 0
        if not is_finite:  # the step counts as lost
            mean = np.zeros_like(mean)
            present = []
            lost = len(cohort)
        round_facts = auditing.RoundFacts(
            present,
            facts.clip_norm / batch_size,
            facts.clip_norm,
            batch_size,
            lost,
        )
        self._auditor.observe(None, round_facts, released={"others": mean})
        self._facts.append(facts)
        if is_finite:
            self._seen.add(self._steps, facts, clipped, noise, untouched)
        else:
            self._auditor.faults.add(
                self._auditor.rounds - 1,
                auditing.FaultKind.NO_MODEL_RELEASED,
                "the noisy gradient has NaN or infinite entries",
            )

    @property
    def faults(self) -> list[str]:
        """The faults so far, in sentences."""
        return self._auditor.faults.messages

    @property
    def findings(self) -> StepFindings:
        """The result of `check_steps` for the steps so far."""
        return self._findings(self._seen.noise)

    def _findings(self, noise: list[Check]) -> StepFindings:
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
        unbounded = None
        has_fresh_noise = self._design["full_knowledge"]
        if has_fresh_noise and findings.unbounded:
            unbounded = f"{findings.unbounded}, so ε of every round is infinite"
            has_fresh_noise = False
        unseen = [f"Not checked: {text}." for text in findings.unseen]
        record = self._auditor.record(
            final=self._steps.model() if self._final is None else self._final,
            mechanism=mechanism,
            design=auditing.Design.of(self._design),
            findings=auditing.Findings(
                plan=(self._plan, *unseen),
                not_measured=self._stopped,
                step_faults=findings.faults,
                noise=sentences(noise),
                unbounded=unbounded,
                unseen=findings.unseen,
            ),
        )
        fresh = np.ones((record.rounds, 1)) if has_fresh_noise else None
        rates = mechanism.server.learning_rates
        if rates is None or self._steps.momentum:
            rates = np.ones(len(self._facts))
        return dataclasses.replace(
            record,
            correlation=auditing.RoundCorrelation(fresh),
            norms=dataclasses.replace(
                record.norms, deltas=rates * record.norms.means
            ),
        )

    def _mechanism(self) -> auditing.Mechanism:
        steps = self._steps
        facts = self._facts
        rate = self._design["sample_rate"]
        participations = self._design["participations"]
        rates = np.array([step.learning_rate for step in facts])
        server = auditing.ServerStep(steps.description)
        momentum = None if self._stopped else steps.momentum
        if momentum is not None and np.isfinite(rates).all():
            server = auditing.ServerStep("sgd", rates, momentum)
        if rate is None:
            law = ParticipationLaw(
                len(facts),
                participations,
                math.ceil(participations),
                unit="example",
            )
        else:
            chances = np.array(
                [min(1.0, step.batches * rate) for step in facts]
            )
            participations = float(chances.sum())
            law = ParticipationLaw(
                len(facts),
                participations,
                unit="example",
                hidden=bool(chances.min(initial=1.0) < 1),
                adjacency="add-or-remove",
                coins=Coins(len(facts), float(chances.max(initial=0.0))),
                events=Events.coins(chances),
            )
        return auditing.Mechanism(
            cohort_size=steps.batch_size,
            noise_multiplier=_constant(
                [step.noise_multiplier for step in facts]
            ),
            sum_noise_multiplier=_constant(
                [step.sum_noise_multiplier for step in facts]
            ),
            participation=law.in_record(),
            canary_participations=participations,
            server=server,
            clip_norms=np.array([step.clip_norm for step in facts], np.float64),
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

        It never raises an error: the text names the error.

        Args:
            directory: the folder in which the files are written.
            details: whether the text also has the rest of the page, not only the answer and
                warnings.
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


def _constant(values: list[float]) -> float | None:
    """The common value of all, or ``None`` if they differ."""
    if len(set(values)) == 1:
        return values[0]
    return None
