"""A silo's answer, with a line for each adversary, from the stored results of its rounds."""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fl_epe.accounting import epsilon_of_signals, tightest, upper_bounds
from fl_epe.auditing import (
    Adversary,
    AuditRecord,
    CanaryCosines,
    FederationFacts,
    NotMeasured,
    SiloAdversary,
    SiloAnswer,
    SiloLine,
    answer,
)
from fl_epe.auditing.record import quotients
from fl_epe.checks import Floats
from fl_epe.dp_sgd import SeenSteps, StepFindings
from fl_epe.schedules import ParticipationLaw
from fl_epe.silos.memory import SiloHistory, SiloMemory
from fl_epe.silos.places import reason_of
from fl_epe.wording import counted, number, unit_of_records

CONFIDENCE = 0.95
"""Confidence of the intervals and lower bounds of a silo's answer."""

# Confidence of a lower bound above theory, which accuses the silo of a defect.
_ACCUSING = 0.9999

_SECRET = Adversary("all", knows_rounds=False)

# Shares of uploads whose relative spread is smaller are treated as equal.
_EQUAL_SHARES = 0.05

# The uploads' energy differs from that of the claimed noise if they are further apart than this
# share of it and so many standard errors.
_ENERGY_TOLERANCE = 0.02
_STANDARD_ERRORS = 5.0

# If the uploads' energy is more than so many times that of the claimed noise, the uploads contain
# more than the sums of the steps.
_FOREIGN = 1.5


def brief_answer(memory: SiloMemory) -> SiloAnswer:
    """The answer after each round: the number of rounds, and faults that are quick to find."""
    reason = (
        memory.plan.too_small
        or "ε is computed once the silo has the last model"
    )
    return SiloAnswer(
        silo=memory.plan.silo,
        unit=unit_of_records(memory.plan.records),
        delta=memory.plan.delta,
        confidence=CONFIDENCE,
        rounds=memory.rounds,
        canaries=memory.uploads.canaries_seen,
        lines=tuple(
            SiloLine(adversary, reason=reason) for adversary in _MEASURES
        ),
        faults=tuple(_faults(memory, StepFindings())),
    )


def answer_of(
    memory: SiloMemory, facts: FederationFacts | None = None
) -> SiloAnswer:
    """The answer so far.

    Args:
        memory: the stored results of the silo's rounds.
        facts: facts about the federation once the silo has the last model; ``None`` before.
    """
    plan = memory.plan
    history = memory.history
    silo = _Silo(memory, facts)
    findings = silo.findings
    notes = [f"not checked: {text}" for text in findings.unseen]
    notes += [f"the audit stood back: {text}" for text in history.stood_back]
    design = None
    if plan.share_design and history.with_steps:
        design = {
            "sampling rate": max(rate for _, rate, _ in history.with_steps),
            "steps": float(sum(steps for steps, _, _ in history.with_steps)),
            "expected batch": plan.batch,
            "noise multiplier": min(z for _, _, z in history.with_steps),
        }
    return dataclasses.replace(
        brief_answer(memory),
        lines=tuple(silo.line(adversary) for adversary in _MEASURES),
        faults=tuple(_faults(memory, findings)),
        notes=tuple(notes),
        design=design,
        records=silo.shared_records() if plan.share_scores else None,
    )


def unmeasured(
    silo: str, unit: str, delta: float, history: SiloHistory
) -> SiloAnswer:
    """The answer of a silo that no canary could join, with the reason."""
    faults = [f"{name} trained without DP-SGD" for name in history.not_private]
    reason = [*faults, *history.stood_back, "no round was audited"][0]
    theory = math.inf if faults else None
    return SiloAnswer(
        silo=silo,
        unit=unit,
        delta=delta,
        confidence=CONFIDENCE,
        rounds=sum(history.not_private.values()),
        canaries=0,
        lines=tuple(
            SiloLine(adversary, theory=theory, reason=reason)
            for adversary in _MEASURES
        ),
        faults=tuple(faults),
    )


def _faults(memory: SiloMemory, findings: StepFindings) -> Iterator[str]:
    """How the silo's training differs from what its privacy accounting assumes."""
    history = memory.history
    yield from _not_private(memory)
    yield from findings.faults
    steps = sum(count for count, _, _ in history.trained)
    if history.accounted is not None and history.accounted < steps:
        share = f"{history.accounted / steps:.0%} of the steps"
        if memory.plan.share_design:
            share = f"{history.accounted:,} of {counted(steps, 'step')}"
        yield f"its accountant counts {share}: the ε that it states is of those alone"
    ratio = _energy_ratio(memory)
    if ratio is not None and ratio < 1:
        yield f"its uploads have {number(math.sqrt(ratio))} times the noise that is claimed"


def _not_private(memory: SiloMemory) -> Iterator[str]:
    for name, rounds in memory.history.not_private.items():
        yield f"{name} trained without DP-SGD {_in_rounds(rounds, memory)}"


def _in_rounds(count: int, memory: SiloMemory) -> str:
    return f"in {count} of {counted(memory.rounds, 'round')}"


def _energy_ratio(memory: SiloMemory) -> float | None:
    """The uploads' energy over that of the claimed noise; ``None`` if they may be equal."""
    dim = memory.plan.dim
    uploads = memory.history.uploads
    energies = np.array([upload.energy for upload in uploads])
    canaries = np.array([upload.canaries for upload in uploads])
    noise = np.array([dim * upload.variance for upload in uploads])
    claimed = float(noise.sum())
    if not claimed > 0:
        return None
    # The canaries' directions are not quite orthogonal, so a difference may be below 0.
    ratio = max(float(np.sum(energies - canaries)) / claimed, 0.0)
    # The standard error has parts from the energy of the noise, from the products of noise and
    # canaries, and from the products of canaries with each other.
    squares = np.sum(2 * noise**2 + 4 * noise * canaries) / dim
    error = math.sqrt(float(squares)) + math.sqrt(2 / dim) * float(
        canaries.sum()
    )
    tolerance = _ENERGY_TOLERANCE + _STANDARD_ERRORS * error / claimed
    if abs(ratio - 1) > tolerance:
        return ratio
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class _Averages:
    """The T averages that a silo received.

    Attributes:
        record: the record of the canaries' scores with the averages.
        residual_norms: norm of the silo's part of each average, ``(T,)``.
        other_energies: energy of the other silos' part of each average, ``(T,)``.
        dots: inner products of all canaries with the silo's part, ``(T, count)``.
        units: what a record that is drawn once adds to each average, ``(T,)``.
        variances: claimed variance of the silo's noise in a coordinate, ``(T,)``.
    """

    record: AuditRecord
    residual_norms: Floats
    other_energies: Floats
    dots: Floats
    units: Floats
    variances: Floats

    def in_residual(self, remaining: Floats) -> AuditRecord:
        """The record if the averages had only a share of the other silos' energy.

        Args:
            remaining: the share that remains in each average, ``(T,)``.
        """
        norms = np.sqrt(
            self.residual_norms**2 + remaining * self.other_energies
        )
        factors = np.sqrt(remaining)

        def means(cosines: CanaryCosines) -> Floats:
            silo_dots = (1 - factors)[:, None] * self.dots[:, cosines.ids]
            dots = (factors * self.record.norms.means)[:, None] * cosines.means
            return quotients(silo_dots + dots, norms[:, None])

        values: dict[str, Any] = {
            "running.scores": None,
            "running.signals": None,
            "observed.means": means(self.record.observed),
            "unobserved.means": means(self.record.unobserved),
            "norms.means": norms,
        }
        return self.record.with_values(**values)


class _Silo:
    """Computes the lines of a silo's adversaries."""

    def __init__(
        self, memory: SiloMemory, facts: FederationFacts | None
    ) -> None:
        self.memory = memory
        self.plan = memory.plan
        self.history = memory.history
        self.facts = facts
        self.findings = StepFindings()
        if memory.steps is not None:
            self.findings = SeenSteps.of_state(memory.steps).findings(
                self.plan.rate,
                self.plan.batch,
                tells_sizes=self.plan.share_design,
            )
        self.energy_ratio = _energy_ratio(memory)
        self.shares = np.array(
            [average.share for average in self.history.averages]
        )
        trained = self.history.with_steps
        self.noise = min((z for _, _, z in trained), default=0.0)
        self.theory: float | None = None
        if self.history.not_private or self.findings.unbounded:
            self.theory = math.inf
        # If the audit stood back, some steps are not counted, and theory is not known.
        elif trained and not self.history.stood_back:
            weights = [np.ones(steps) for steps, _, _ in trained]
            rates = [rate for _, rate, _ in trained]
            law = ParticipationLaw.of_records(weights, rates, self.plan.records)
            bounds = upper_bounds(law, self.noise, self.plan.delta)
            self.theory = tightest(bounds, rounds_known=False).epsilon

    def line(self, adversary: SiloAdversary) -> SiloLine:
        """The line of one adversary."""
        line = SiloLine(adversary, theory=self.theory)
        try:
            for reason in self._refusals():
                raise NotMeasured(reason)
            return _MEASURES[adversary](self, line)
        except NotMeasured as error:
            return dataclasses.replace(line, reason=str(error))
        except Exception as error:  # noqa: BLE001 - the other adversaries' lines follow
            reason = f"the audit stood back: {reason_of(error)}"
            return dataclasses.replace(line, reason=reason)

    def _refusals(self) -> Iterator[str]:
        """The reasons for which ε is not measured for any adversary."""
        history = self.history
        for text in _not_private(self.memory):
            yield f"{text}, and nothing bounds what it leaks"
        if self.findings.unbounded:
            yield f"{self.findings.unbounded}, so that nothing bounds what it leaks"
        if self.plan.too_small:
            yield self.plan.too_small
        for reason, rounds in history.reasons.items():
            yield f"{reason}, {_in_rounds(rounds, self.memory)}"
        if history.unsent:
            yield history.unsent
        if history.stood_back:
            yield f"the audit stood back: {history.stood_back[0]}"
        if not history.uploads:
            yield "the silo has uploaded nothing so far"
        if any(
            weight < 0
            for upload in history.uploads
            for weight in upload.weights
        ):
            yield (
                "some steps move the model the other way by the end of a round, as momentum with "
                "weight decay does"
            )
        if self.energy_ratio is not None and self.energy_ratio > _FOREIGN:
            yield (
                f"uploads have {number(self.energy_ratio)} times the energy of the noise that is "
                "claimed: the model moves between the audit's start and end by more than its steps;"
                " it must be loaded before the audit starts, and sent as it then is"
            )

    def server(self, line: SiloLine) -> SiloLine:
        """The line of an adversary who sees each upload."""
        uploads = self.history.uploads
        law = self._law(range(len(uploads)))
        record = self.memory.record(averages=False, **self._values(law))
        limit = self._limit(
            law,
            np.array([upload.unit for upload in uploads]),
            np.array([upload.variance for upload in uploads]),
        )
        doubts = []
        if self.energy_ratio is not None and self.energy_ratio > 1:
            doubts.append(
                f"uploads have {number(self.energy_ratio)} times the energy of the noise that is "
                "claimed: something besides the steps moves the model, and hides records"
            )
        return self._measured(line, record, _SECRET, limit, doubts)

    def outsider(self, line: SiloLine) -> SiloLine:
        """The line of an adversary who sees each average."""
        return self._of_averages(line, np.ones(len(self.shares)), [])

    def partner(self, line: SiloLine) -> SiloLine:
        """The line of a silo that subtracts its own upload, and those of its allies."""
        silos = self.plan.silos
        allies = 1
        shares_of_others: tuple[float, ...] = ()
        if self.facts is not None:
            silos = self.facts.silos or silos
            allies = self.facts.allies
            shares_of_others = self.facts.others
        if silos is None:
            raise NotMeasured("how many silos there are is not known (silos=…)")
        if silos < 2:
            raise NotMeasured("there is no other silo")
        doubts = []
        count = len(self.shares)
        if shares_of_others:
            # There is a share for each average with an upload of this silo.
            remaining = np.ones(count)
            indices = np.flatnonzero(self.shares)
            remaining[indices] = 0.0
            for i, share in zip(indices, shares_of_others, strict=False):
                remaining[i] = share
        elif allies >= silos - 1:
            remaining = np.zeros(count)
        elif self.plan.silos is not None:
            remaining = np.full(count, (silos - 1 - allies) / (silos - 1))
            doubts.append(
                "the other silos are taken to add as much to an average each"
            )
        else:
            raise NotMeasured(
                "how much each of the other silos adds to an average is not known (silos=… takes "
                "them to be alike)"
            )
        return self._of_averages(line, remaining, doubts)

    def public(self, line: SiloLine) -> SiloLine:
        """The line of an adversary who has the last model."""
        self._check_server()
        if self.facts is None:
            raise NotMeasured("the silo has not seen the last model")
        if self.history.rewound:
            raise NotMeasured(
                "the server went back to an earlier model during the run"
            )
        adversary = dataclasses.replace(_SECRET, sees="final")
        limit = self._limit_of_last_model()
        return self._measured(line, self._averages.record, adversary, limit, [])

    def _check_server(self) -> None:
        facts = self.facts
        server = self.plan.server
        if facts is not None:
            if facts.server != "sgd":
                raise NotMeasured(
                    f"the server moves the model by {facts.server}, not by averages"
                )
            has_rate = facts.learning_rate == server.learning_rate
            if not has_rate or facts.momentum != server.momentum:
                raise NotMeasured(
                    f"the server has learning rate {facts.learning_rate:g} and momentum "
                    f"{facts.momentum:g}, which the silo was not told (server=…)"
                )
        if self.history.momentum:
            raise NotMeasured(
                "averages hold more of earlier uploads than the silo was told, as by a server with "
                "momentum (server=…)"
            )
        if not self.shares.any():
            raise NotMeasured("no upload of the silo is seen in an average")

    def _of_averages(
        self, line: SiloLine, remaining: Floats, doubts: list[str]
    ) -> SiloLine:
        """The line of an adversary who sees averages.

        Args:
            line: the line of that adversary, with its theory.
            remaining: share of the other silos' energy that hides the silo in each average,
                ``(T,)``.
            doubts: the doubts about this line.
        """
        self._check_server()
        rounds = self._rounds_of_averages()
        remaining = remaining / rounds
        joint = int(np.sum(rounds > 1))
        if joint:
            doubts.append(
                f"{counted(joint, 'average')} could be seen only together with "
                "those of rounds without this silo, which are taken to be alike"
            )
        if self.facts is None:
            doubts.append(
                "the silo is taken to be in every round, and the last average is missing"
            )
        averages = self._averages
        record = averages.record
        if np.any(remaining < 1):
            record = averages.in_residual(remaining)
        noise = (
            averages.variances
            + remaining * averages.other_energies / self.plan.dim
        )
        limit = self._limit(self._law_of_averages(), averages.units, noise)
        return self._measured(line, record, _SECRET, limit, doubts)

    @functools.cached_property
    def _averages(self) -> _Averages:
        law = self._law_of_averages()
        record = self.memory.record(averages=True, **self._values(law))
        indices = [average.upload for average in self.history.averages]
        uploads = [self.history.uploads[i] for i in indices]
        squares = self.shares**2
        energies = squares * np.array([upload.energy for upload in uploads])
        upload_dots = self.memory.uploads.state()["dots.mean"]
        return _Averages(
            record=record,
            residual_norms=np.sqrt(energies),
            other_energies=np.maximum(record.norms.means**2 - energies, 0.0),
            dots=self.shares[:, None] * upload_dots[indices],
            units=self.shares * np.array([upload.unit for upload in uploads]),
            variances=squares
            * np.array([upload.variance for upload in uploads]),
        )

    def _rounds_of_averages(self) -> np.ndarray:
        """Number of the federation's rounds that each average of the silo spans, ``(T,)``."""
        facts = self.facts
        rounds = np.ones(len(self.shares))
        if facts is None:
            return rounds
        indices = np.flatnonzero(self.shares)
        if len(indices) != len(facts.taken):
            raise NotMeasured(
                f"{counted(len(facts.taken), 'upload')} arrived, and the silo sees "
                f"{len(indices)} of them in averages"
            )
        rounds[indices] = np.diff([*facts.taken, facts.rounds + 1])
        return rounds

    def _law(self, indices: Sequence[int]) -> ParticipationLaw:
        """The law of a record in releases of these uploads; −1 is a release without one."""
        weights = []
        rates = []
        for i in indices:
            upload = self.history.uploads[i] if i >= 0 else None
            weights.append(np.array(upload.weights if upload else []))
            rates.append(upload.rate if upload else 1.0)
        return ParticipationLaw.of_records(weights, rates, self.plan.records)

    def _law_of_averages(self) -> ParticipationLaw:
        averages = self.history.averages
        return self._law([a.upload if a.share else -1 for a in averages])

    def _values(self, law: ParticipationLaw) -> dict[str, Any]:
        return {
            "participation": law,
            "noise_multiplier": self.noise,
            "sum_noise_multiplier": self.noise,
            "num_canaries": self.plan.num_canaries,
        }

    def _limit(
        self, law: ParticipationLaw, units: Floats, variances: Floats
    ) -> float:
        """The linear limit.

        Args:
            law: the participation law of a record in the releases.
            units: what a record that is drawn once adds to each release.
            variances: variance of the noise in a coordinate of each release.
        """
        if not np.all(variances > 0):
            return math.inf
        signals = units / np.sqrt(variances)
        return epsilon_of_signals(signals, self.plan.delta, law.events)

    def _limit_of_last_model(self) -> float:
        averages = self._averages
        indices = np.flatnonzero(self.shares)
        shares = self.shares[indices]
        uploads = [
            self.history.uploads[self.history.averages[i].upload]
            for i in indices
        ]
        units = averages.units[indices]
        if np.ptp(shares) < _EQUAL_SHARES * shares.mean():
            units = shares.mean() / shares * units
        weights = np.concatenate(
            [
                unit * np.array(upload.weights)
                for unit, upload in zip(units, uploads, strict=True)
            ]
        )
        other_variances = averages.other_energies[indices] / self.plan.dim
        variance = float(np.sum(averages.variances[indices] + other_variances))
        rate = max(upload.rate for upload in uploads)
        law = ParticipationLaw.of_records(
            [weights / weights.mean()], [rate], self.plan.records
        )
        return self._limit(
            law, weights.mean(keepdims=True), np.array([variance])
        )

    def _measured(
        self,
        line: SiloLine,
        record: AuditRecord,
        adversary: Adversary,
        limit: float,
        doubts: list[str],
    ) -> SiloLine:
        result = answer(record, adversary, confidence=CONFIDENCE)
        line = dataclasses.replace(
            line,
            linear_limit=limit,
            releases=1 if adversary.sees == "final" else record.rounds,
            doubts=tuple(doubts),
        )
        if result.estimate is None:
            return dataclasses.replace(line, reason=result.reason)
        proved = result.proved or None
        if line.theory is not None and (proved or 0.0) > line.theory:
            # At the usual confidence, a bound is above theory by chance in up to 5% of lines.
            proved = (
                answer(record, adversary, confidence=_ACCUSING).proved or None
            )
        if result.contradicted:
            doubts.append(
                "what is proved is above the interval, which is not to be trusted"
            )
        return dataclasses.replace(
            line,
            epsilon=result.estimate.epsilon,
            low=result.estimate.low,
            high=result.estimate.high,
            scale=None if result.fit is None else result.fit.scale,
            proved=proved,
            doubts=tuple(doubts),
        )

    def shared_records(self) -> dict[str, str]:
        """The record of the averages as a base64 file, if any, without the canaries' seed."""
        try:
            record = self._averages.record
        except (NotMeasured, ValueError, LookupError):
            return {}
        record = dataclasses.replace(
            record, provenance=dataclasses.replace(record.provenance, seeds={})
        )
        with tempfile.TemporaryDirectory() as folder:
            path = record.save(Path(folder, "averages.npz"))
            return {"averages": base64.b64encode(path.read_bytes()).decode()}


_MEASURES: dict[SiloAdversary, Callable[[_Silo, SiloLine], SiloLine]] = {
    "server": _Silo.server,
    "partner": _Silo.partner,
    "outsider": _Silo.outsider,
    "public": _Silo.public,
}
