"""`DPSGDAudit`: how much a run of DP-SGD tells about one example, measured in that run.

No exception of the audit ends training: it is told once, and the run goes on without.
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

logger = logging.getLogger("fl_epe.dp_sgd")

_MUCH = 0.1  # share of canaries that a user must hear of
_UNTOUCHED_EVERY = (
    50  # steps: one in which canaries leave entries alone that no example touches
)


class DPSGDAudit:
    """What `audit_dp_sgd` returns: a context for training, and then its results.

    The noisy gradient of every step is scored against all canaries. As everywhere a released mean
    points where the model goes, it is less the mean gradient; a canary's own gradient points away
    from its direction.

    Attributes:
        delta: target δ.
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
        self._loggers = loggers
        self._steps, self._auditor, self._cohorts = steps, auditor, cohorts
        self._design, self._plan = design, plan
        self.delta = auditor.delta
        self._active = False
        self._stopped: str | None = None
        self._final: Vector | None = None  # once training has ended
        self._has_begun = False
        self._hooks = contextlib.ExitStack()
        self._facts: list[StepFacts] = []
        self._seen = SeenSteps(steps.tensor_sizes)

    def __enter__(self) -> Self:
        """Note the initial model, and let canaries join from the next step on.

        Raises:
            ValueError: if the audit has been entered before.
        """
        if self._has_begun:
            raise ValueError(
                "Expected a new audit_dp_sgd: this one has seen a run. For the rounds of a"
                " federation use fl_epe.audit_records."
            )
        self._auditor.begin(self._steps.model())
        self._active = self._has_begun = True
        hooks = hooked(
            self._steps.optimizer,
            clip=self._clip,
            add_noise=self._add_noise,
            step=self._step,
        )
        self._hooks.enter_context(hooks)
        level = logging.WARNING if self._design["share"] > _MUCH else logging.INFO
        logger.log(level, "Audit: %s", self._plan)
        return self

    def __exit__(self, *_: object) -> None:
        self._active = False
        with self._standing_back("the final model could not be read"):
            self._hooks.close()
            self._final = self._steps.model()
            self._seen.movement.count_change(self._final)
            for fault in self.findings.faults:
                logger.warning("Audit: %s", fault)

    @contextlib.contextmanager
    def _standing_back(self, what: str) -> Iterator[None]:
        """Stand back for the rest of the run after an error, and say so."""
        try:
            yield
        except Exception as error:
            text = f"{what}: {error_text(error)}"
            step = self._auditor.rounds
            self._stopped, self._active = (
                self._stopped or f"step {step + 1}, {text}",
                False,
            )
            text += "; the run goes on without the audit"
            self._auditor.faults.add(step, auditing.FaultKind.AUDIT_STOOD_BACK, text)
            logger.warning("Audit, step %d, %s", step + 1, text)
            logger.debug("Where it happened", exc_info=error)

    def _clip(self, clip: Callable[[], None]) -> None:
        if self._active:
            self._seen.clip(self._steps, clip)
        else:
            clip()

    def _step(self, step: Callable[..., Any], *args: Any, **options: Any) -> Any:
        outcome = step(*args, **options)
        if self._active:
            with self._standing_back("what moved the model could not be found out"):
                self._seen.movement.end(self._steps.model())
        return outcome

    def _add_noise(self, add_noise: Callable[[], None]) -> None:
        """In the place of the optimizer's ``add_noise``: canaries join before it."""
        undo = None
        if self._active:
            with self._standing_back("canaries could not join"):
                facts = self._steps.facts()
                clipped = self._seen.take_batches()
                cohort = self._cohorts(facts.batches)
                gradient = self._gradient(cohort, facts.clip_norm)
                # Whether noise is added where no gradient is, canaries must not hide.
                untouched = self._steps.clipped() == 0
                untouched &= self._auditor.rounds % _UNTOUCHED_EVERY == 0
                gradient[untouched] = 0
                summed, undo = self._steps.join(gradient)
        call_or_undo(add_noise, undo)
        if undo is not None:
            with self._standing_back("the step could not be scored"):
                self._score(facts, cohort, clipped, gradient, summed, untouched)
                if self._loggers:
                    values = self._auditor.metrics_so_far() | {
                        "clip_norm": facts.clip_norm
                    }
                    values["canaries_seen"] = self._auditor.canaries_seen
                    values["fault_count"] = self._auditor.faults.total
                    self._loggers.log(self._auditor.rounds, values, resumed=False)

    def _gradient(self, cohort: Cohort, clip_norm: float) -> Vector:
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
        """Score what the adversary does not know: the noise, or all but the canaries."""
        noisy, n = self._steps.noisy(), self._steps.batch_size
        noise = noisy - summed
        unknown = noise if self._design["full_knowledge"] else noisy - gradient
        mean = np.asarray(unknown, np.float32) / np.float32(-n)
        present, lost = cohort.tolist(), 0
        if not (finite := math.isfinite(norm(mean))):  # the step counts as lost
            mean, present, lost = np.zeros_like(mean), [], len(cohort)
        seen = auditing.RoundFacts(
            present, facts.clip_norm / n, facts.clip_norm, n, lost
        )
        self._auditor.observe(None, seen, released={"others": mean})
        self._facts.append(facts)
        if not finite:
            self._auditor.faults.add(
                self._auditor.rounds - 1,
                auditing.FaultKind.NO_MODEL_RELEASED,
                "the noisy gradient has NaN or infinite entries",
            )
            return
        self._seen.add(self._steps, facts, clipped, noise, untouched)

    @property
    def faults(self) -> list[str]:
        """What went wrong so far, in sentences."""
        return self._auditor.faults.messages

    @property
    def findings(self) -> StepFindings:
        """How the steps so far differ from what the privacy accounting assumes: `check_steps`."""
        return self._found(self._seen.noise)

    def _found(self, noise: list[Check]) -> StepFindings:
        steps = self._steps
        return self._seen.findings(
            steps.sample_rate or self._design["sample_rate"],
            float(steps.optimizer.expected_batch_size or math.nan),
            is_sampled=self._design["participations"] is None,
            noise=noise,
        )

    def record(self) -> auditing.AuditRecord:
        """What the run leaves behind so far, for every estimate and bound.

        Raises:
            ValueError: before the audit was entered.
        """
        if not self._has_begun:
            raise ValueError(
                "Expected `with audit_dp_sgd(…) as audit:` around training first."
            )
        mechanism, noise = self._mechanism(), self._seen.noise
        found = self._found(noise)
        unbounded, knowing = None, self._design["full_knowledge"]
        if knowing and found.unbounded:
            unbounded = f"{found.unbounded}, so ε of every round is infinite"
        record = self._auditor.record(
            final=self._steps.model() if self._final is None else self._final,
            mechanism=mechanism,
            design=auditing.Design.of(self._design),
            findings=auditing.Findings(
                plan=(self._plan, *(f"Not checked: {text}." for text in found.unseen)),
                not_measured=self._stopped,
                step_faults=found.faults,
                noise=sentences(noise),
                unbounded=unbounded,
                unseen=found.unseen,
            ),
        )
        fresh = np.ones((record.rounds, 1)) if knowing and not unbounded else None
        rates, momentum = mechanism.server.learning_rates, self._steps.momentum
        scale = np.ones(len(self._facts)) if rates is None or momentum else rates
        return dataclasses.replace(
            record,
            correlation=auditing.RoundCorrelation(fresh),  # the noise of a step is
            norms=dataclasses.replace(record.norms, deltas=scale * record.norms.means),
        )

    def _mechanism(self) -> auditing.Mechanism:
        steps, facts, rate = self._steps, self._facts, self._design["sample_rate"]
        rates = np.array([step.learning_rate for step in facts])
        server = auditing.ServerStep(steps.description)
        if (
            self._stopped is None
            and steps.momentum is not None
            and np.isfinite(rates).all()
        ):
            server = auditing.ServerStep("sgd", rates, steps.momentum)
        participations, count = self._design["participations"], len(facts)
        if rate is None:
            law = ParticipationLaw(
                count, participations, math.ceil(participations), unit="example"
            )
        else:
            chances = np.array([min(1.0, step.batches * rate) for step in facts])
            participations = float(chances.sum())
            law = ParticipationLaw(
                count,
                participations,
                unit="example",
                hidden=bool(chances.min(initial=1.0) < 1),
                adjacency="add-or-remove",
                coins=Coins(count, float(chances.max(initial=0.0))),
                events=Events.coins(chances),
            )
        return auditing.Mechanism(
            cohort_size=steps.batch_size,
            noise_multiplier=_constant([step.noise_multiplier for step in facts]),
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
        """ε of the run: `epsilon_from_record` on `record`.

        Its options are that function's; by default δ is the audit's, and the adversary that of
        its privacy accounting.
        """
        return auditing.epsilon_from_record(self.record(), delta, **options)

    def report(
        self, directory: str | Path | None = None, *, details: bool = False
    ) -> str:
        """The report as text; with a ``directory``, also record.npz, report.json and report.html.

        Never raises: what goes wrong is said in the text.

        Args:
            directory: where to write.
            details: also all else that the page says, not only the answer and warnings.
        """
        try:
            from fl_epe.reporting import (
                as_text,
                summarize,
                write_report,
            )  # slow to import

            record = self.record()
            summary, page = summarize(record), list[str]()
            if directory is not None:
                record.save(Path(directory) / "record.npz")
                write_report(summary, Path(directory))
                page.append(f"Report: {Path(directory) / 'report.html'}")
            self._loggers.close(
                summary.metrics(), Path(directory) if directory else None
            )
            return "\n".join([as_text(summary, details=details).rstrip(), *page])
        except Exception as error:  # noqa: BLE001 - training is over and must not be lost
            return "\n".join([f"The report is incomplete: {error}", *self.faults])


def _constant(values: list[float]) -> float | None:
    return values[0] if len(set(values)) == 1 else None
