"""`audit_dp_sgd`: how much a run of DP-SGD tells about one example, measured in that run.

No exception of the audit ends training: it is told once, and the run goes on without.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import math
import secrets
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing import (
    EVERY_ROUND,
    LEAST_FOR_NULL,
    Adversary,
    AuditRecord,
    Design,
    EpsilonEstimate,
    FaultKind,
    Findings,
    Provenance,
    epsilon_from_record,
    installed_versions,
)
from fl_epe.canaries import CanaryKind, CanarySet
from fl_epe.checks import check_probability, raise_invalid
from fl_epe.dp_sgd.plain_steps import steps_of
from fl_epe.dp_sgd.sampling import Sampling, canary_cohorts, config_of, sampling_of
from fl_epe.dp_sgd.scored_steps import JoinedStep, ScoredSteps
from fl_epe.dp_sgd.step_checks import StepFindings, StepSeen, check_steps, sketch_of
from fl_epe.dp_sgd.steps import Steps
from fl_epe.schedules import Cohort

if TYPE_CHECKING:
    from opacus.optimizers import DPOptimizer

    from fl_epe.dp_sgd.plain import PlainDPSGD

logger = logging.getLogger("fl_epe.dp_sgd")

_MUCH = 0.1  # share of canaries that a user must hear of
_FAULTS_KEPT = 100
_ALSO_KNOWN = "every real example's gradient in every step"  # with full knowledge, in reports


class DPSGDAudit:
    """What `audit_dp_sgd` returns: a context for training, and then its results."""

    def __init__(
        self,
        steps: Steps,
        scored: ScoredSteps,
        cohorts: Callable[[int], Cohort],
        sampling: Sampling,
        config: dict[str, Any],
        *,
        delta: float,
        seed: int,
    ) -> None:
        self._steps, self._scored, self._cohorts = steps, scored, cohorts
        self._sampling, self._config = sampling, config
        self.delta = delta
        self._seed = seed
        self._final: NDArray[np.floating] = np.empty(0)
        self._full_knowledge = bool(config["full_knowledge"])
        self._active = self._entered = False
        self._stopped: str | None = None
        self.faults: list[str] = []
        self._fault_counts: Counter[str] = Counter()
        self._clipped: list[tuple[float, float]] = []  # batches of the step that is going on
        self._seen: list[StepSeen] = []

    def __repr__(self) -> str:
        told = [f"{self._scored.count} steps", *self.findings.faults]
        return f"DPSGDAudit({self._steps.description}, {', '.join(told)})"

    def __enter__(self) -> Self:
        """Note the initial model, and let canaries join from the next step on.

        Raises:
            ValueError: if the audit has been entered before.
        """
        if self._entered:
            raise ValueError("Expected a new audit_dp_sgd: this one has seen a run.")
        self._scored.auditor.begin(self._steps.model())
        self._entered = self._active = True
        self._steps.hook("add_noise", self._around)
        self._steps.hook("clip_and_accumulate", self._clip)
        much = self._config["share"] > _MUCH
        for sentence in self._config["plan"]:
            logger.log(logging.WARNING if much else logging.INFO, "Audit: %s", sentence)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the optimizer back as it was."""
        self._active = False
        try:
            self._steps.unhook()
            self._final = self._steps.model()
            for fault in self.findings.faults:
                logger.warning("Audit: %s", fault)
        except Exception as problem:  # noqa: BLE001 - training is over and must not be lost
            self._stop("the final model could not be read", problem)

    def _around(self, add_noise: Callable[[], None]) -> None:
        """In the place of the optimizer's ``add_noise``."""
        joined = None
        if self._active and self._stopped is None:
            try:
                joined = self._join()
            except Exception as error:  # noqa: BLE001 - the run goes on
                self._stop("canaries could not join", error)
        try:
            add_noise()
        except BaseException:
            if joined is not None:
                joined.undo()
            raise
        if joined is not None:
            try:
                self._score(joined)
            except Exception as error:  # noqa: BLE001 - the run goes on
                self._stop("the step could not be scored", error)

    def _clip(self, clip: Callable[[], None]) -> None:
        """In the place of Opacus's ``clip_and_accumulate``; what cannot be seen is not checked."""
        before, watch = None, self._active and self._stopped is None
        if watch:
            with contextlib.suppress(Exception):
                before = self._steps.so_far()
        clip()
        if watch:
            self._see(before)

    def _see(self, before: Any) -> None:
        seen = math.nan, math.nan
        with contextlib.suppress(Exception):
            seen = self._steps.clipped(before)
        self._clipped.append(seen)

    def _join(self) -> JoinedStep:
        facts = self._steps.facts()
        if self._steps.clips_in_step:
            self._see(None)
        clipped, self._clipped = self._clipped, []
        cohort = self._cohorts(facts.batches)
        if not len(cohort):
            return JoinedStep(cohort, facts, clipped, 0.0, self._steps.summed(), lambda: None)
        gradient = self._scored.gradient(cohort, facts.clip_norm)
        undo = self._steps.join(gradient)
        try:
            return JoinedStep(cohort, facts, clipped, gradient, self._steps.summed(), undo)
        except BaseException:
            undo()
            raise

    def _score(self, joined: JoinedStep) -> None:
        """Score what the adversary does not know: the noise, or all but the canaries."""
        noisy, facts = self._steps.noisy(), joined.facts
        noise = noisy - joined.summed
        unknown = noise if self._full_knowledge else noisy - joined.gradient
        if not self._scored.add(unknown, joined.cohort, facts, self._steps.batch_size):
            self._fault("the noisy gradient has NaN or infinite entries", FaultKind.NO_MODEL)
            return
        starts = np.append(0, np.cumsum(self._steps.tensor_sizes)[:-1])
        counts, longest = np.array(joined.clipped or [(math.nan, math.nan)]).T
        self._seen.append(
            StepSeen(
                noise_scale=facts.sum_noise_multiplier * facts.clip_norm,
                largest=float(longest.max()) / facts.clip_norm,
                examples=float(counts.sum()),
                batches=facts.batches,
                squares=np.add.reduceat(np.square(noise, dtype=np.float64), starts),
                sketch=sketch_of(noise),
            )
        )

    def _stop(self, what: str, error: Exception) -> None:
        """Stand back for the rest of the run, and say so."""
        text = f"{what}: {type(error).__name__}: {error}"
        self._stopped = self._stopped or f"step {self._scored.count + 1}, {text}"
        self._fault(f"{text}; the run goes on without the audit", FaultKind.NO_AUDIT)
        logger.warning("Audit, step %d, %s", self._scored.count + 1, self.faults[-1])
        logger.debug("Where it happened", exc_info=error)

    def _fault(self, text: str, kind: FaultKind) -> None:
        self._fault_counts[str(kind)] += 1
        if len(self.faults) < _FAULTS_KEPT:
            self.faults.append(f"step {self._scored.count}, {text}")

    @property
    def findings(self) -> StepFindings:
        """How the steps so far differ from what the privacy accounting assumes: `check_steps`."""
        steps = self._steps
        rate = steps.sample_rate or self._sampling.rate
        size = steps.batch_size if steps.batch_size > 1 else math.nan
        return check_steps(self._seen, steps.tensor_sizes, rate=rate, batch_size=size)

    def record(self) -> AuditRecord:
        """What the run leaves behind so far, for every estimate and bound.

        Raises:
            ValueError: before the audit was entered.
        """
        if not self._entered:
            raise ValueError("Expected `with audit_dp_sgd(…) as audit:` around training first.")
        return self._scored.record(
            self._steps.model() if self._active or not len(self._final) else self._final,
            sampling=self._sampling,
            steps=self._steps,
            linear=self._stopped is None,
            design=Design.of({n: v for n, v in self._config.items() if n != "plan"}),
            findings=self._findings(),
            provenance=self._provenance(),
        )

    def _findings(self) -> Findings:
        found = self.findings
        told = [f"Not checked: {text}." for text in found.unseen]
        unbounded = found.unbounded if self._full_knowledge else None
        return Findings(
            plan=(*self._config["plan"], *told),
            not_measured=self._stopped,
            step_faults=tuple(found.faults),
            unbounded=unbounded and f"{unbounded}, so ε of every round is infinite",
        )

    def _provenance(self) -> Provenance:
        versions = installed_versions()
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions["opacus"] = importlib.metadata.version("opacus")
        return Provenance(
            seeds={"canary": self._seed},
            canary_kind=self._config["canary_kind"],
            versions=versions,
            faults=tuple(self.faults),
            fault_counts=dict(self._fault_counts),
        )

    def epsilon(
        self, delta: float | None = None, *, adversary: Adversary = EVERY_ROUND, **options: Any
    ) -> EpsilonEstimate:
        """ε of the run: `epsilon_from_record` on `record`.

        Args:
            delta: target δ; the audit's by default.
            adversary: who sees every step's noisy gradient, or the final model.
            options: as in `epsilon_from_record`.
        """
        return epsilon_from_record(self.record(), delta, adversary=adversary, **options)

    def report(self, directory: str | Path | None = None) -> str:
        """The report as text; with a ``directory``, also record.npz, report.json and report.html.

        Never raises: what goes wrong is said in the text.
        """
        try:
            from fl_epe.reporting import as_text, summarize, write_report  # slow to import

            record = self.record()
            if directory is not None:
                record.save(Path(directory) / "record.npz")
                write_report(record, Path(directory))
            return as_text(summarize(record))
        except Exception as error:  # noqa: BLE001 - training is over and must not be lost
            return "\n".join([f"The report is incomplete: {error}", *self.faults])


def audit_dp_sgd(
    optimizer: DPOptimizer | PlainDPSGD,
    *,
    num_canaries: int,
    delta: float,
    sample_rate: float | None = None,
    steps: int | None = None,
    participations: float = 1,
    unobserved: int | None = None,
    full_knowledge: bool = True,
    seed: int | None = None,
    canary_kind: CanaryKind = "rotation",
) -> DPSGDAudit:
    """An audit to put around a run of DP-SGD: ``with … as audit:``, and train.

    Each canary stands for one example. Its gradient is a random direction as long as the clip norm,
    which joins the clipped gradients before the noise is added. Its steps are drawn before the run:
    by default by coins at the run's own sampling rate, as Poisson sampling draws examples. Nothing
    else changes: noise, denominators, accounting and torch's random numbers stay as they are.

    Args:
        optimizer: an Opacus ``DPOptimizer`` (as ``PrivacyEngine().make_private`` returns it), with
            flat, adaptive or ghost clipping, in one process; or a `PlainDPSGD`.
        num_canaries: canaries that may take part, at least 2.
        delta: target δ.
        sample_rate: probability of a canary to be in a step; by default that which
            ``PrivacyEngine`` told its accountant.
        steps: of the run; instead of coins each canary then takes part in ``participations`` steps.
        participations: see ``steps``.
        unobserved: canaries that are only scored.
        full_knowledge: whether the adversary knows the gradients of all real examples and takes
            them out of every step, as the definition of DP allows. Otherwise they hide canaries.
        seed: of the canaries and their steps; the operating system's entropy by default. Keep it
            secret until training has ended.
        canary_kind: see `CanarySet`.

    Raises:
        TypeError: if ``optimizer`` is none of these.
        ValueError: for an argument out of range, or an optimizer that cannot be audited.
    """
    found = steps_of(optimizer)
    if num_canaries < 2:
        raise_invalid("num_canaries", num_canaries, ">= 2")
    if unobserved is not None and unobserved < 0:
        raise_invalid("unobserved", unobserved, ">= 0")
    check_probability("delta", delta)
    sampling, size = sampling_of(found, sample_rate, steps, participations)
    seed = secrets.randbits(128) if seed is None else seed
    CanarySet(found.dim, num_canaries, seed, canary_kind)  # refuses an unknown kind
    if unobserved is None:
        once = sampling.rate is None and participations <= 1
        unobserved = max(2, num_canaries // 4) if once else max(LEAST_FOR_NULL, num_canaries)
    scored = ScoredSteps(
        found.dim, num_canaries, unobserved, seed=seed, kind=canary_kind, delta=delta
    )
    cohorts = canary_cohorts(sampling, size, num_canaries, seed)
    config = config_of(found, sampling, num_canaries * (sampling.rate or participations / size))
    config |= {
        "num_canaries": num_canaries,
        "unobserved": unobserved,
        "full_knowledge": full_knowledge,
        "also_known": _ALSO_KNOWN if full_knowledge else None,
        "canary_kind": canary_kind,
    }
    return DPSGDAudit(found, scored, cohorts, sampling, config, delta=delta, seed=seed)
