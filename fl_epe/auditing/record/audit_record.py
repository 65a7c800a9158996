"""`AuditRecord`: all that an audited run leaves behind, enough for any later statistic.

A run in which nothing was measured has a record too: its estimates raise `NotMeasured`.

Every value has one name, its path: ``record.norms.means`` is "norms.means" in a record's file and
in the text of an error.

Read one with ``AuditRecord.load("record.npz")`` and hand it to `epsilon_from_record`, or look into
it: ``record.observed.means`` are the cosines of the observed canaries with each round's mean.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fl_epe.archive import refusal
from fl_epe.auditing.record.file import WHAT, part_of, read_values, write_values
from fl_epe.auditing.record.parts import (
    CanaryCosines,
    ClientLog,
    Design,
    Findings,
    Mechanism,
    Norms,
    Provenance,
    RunningScores,
    quotients,
)
from fl_epe.auditing.record.round_correlation import RoundCorrelation
from fl_epe.checks import (
    ArgumentError,
    Booleans,
    Floats,
    check_count,
    check_probability,
    raise_invalid,
)
from fl_epe.mechanism import sgd_weights

_SIDES = ("observed", "unobserved")
_SHAPES = {  # T rounds, k observed and u unobserved canaries, correlated over W rounds
    "Tk": "presence mechanism.canary_weights running.scores running.signals observed.means "
    "observed.deltas observed.residuals observed.sums",
    "Tu": "unobserved.means unobserved.deltas unobserved.residuals unobserved.sums",
    "k": "observed.final observed.displacement observed.part observed.ids",
    "u": "unobserved.final unobserved.displacement unobserved.part unobserved.ids",
    "T": "norms.means norms.deltas norms.residuals norms.sums mechanism.clip_norms "
    "mechanism.contributions mechanism.server.learning_rates clients.absent",
    "TW": "correlation.factor",
    "TT": "mechanism.strategy",
}
_SERIES = (  # of one length
    ("eval_round", "eval_loss", "eval_accuracy", "eval_auc"),
    ("train_loss", "train_accuracy", "unclipped", "cohort"),
)


@dataclasses.dataclass(frozen=True, eq=False)
class AuditRecord:
    """Scores of observed and unobserved canaries, and what is known about the run.

    Attributes:
        dim: dimension d of the model.
        delta: target δ of the run.
        observed: cosines of the canaries that took part, k of them.
        unobserved: cosines of those that never did.
        presence: ``(T, k)`` bool, the rounds of each observed canary.
        norms: of the vectors that the cosines are taken with.
        mechanism: participation, clipping, noise and the server's step.
        clients: the rounds of each real client.
        metrics: series by name, such as "train_loss" ``(T,)`` or "eval_round" and
            "eval_accuracy", of equal length.
        design: what was decided before the run.
        findings: what showed during the run, of the run itself.
        provenance: seeds, versions and faults.
        correlation: of the residuals of the rounds.
        running: the scores so far after each round, of which ε was said during the run.

    Raises:
        ArgumentError: for a value out of range or of another shape, by its name.
    """

    dim: int
    delta: float
    observed: CanaryCosines
    unobserved: CanaryCosines
    presence: Booleans
    norms: Norms
    mechanism: Mechanism
    clients: ClientLog = dataclasses.field(default_factory=ClientLog)
    metrics: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    design: Design = dataclasses.field(default_factory=Design)
    findings: Findings = dataclasses.field(default_factory=Findings)
    provenance: Provenance = dataclasses.field(default_factory=Provenance)
    correlation: RoundCorrelation = dataclasses.field(default_factory=RoundCorrelation)
    running: RunningScores = dataclasses.field(default_factory=RunningScores)

    def __post_init__(self) -> None:
        check_probability("delta", self.delta)
        check_count("dim", self.dim)
        for name in _SIDES:
            shape = np.shape(getattr(self, name).means)
            if len(shape) != 2:
                raise_invalid(f"{name}.means.shape", shape, "to be (rounds, canaries)")
        values = self.by_name()
        sizes = {"T": self.rounds, "k": self.num_canaries, "u": self.unobserved.count}
        sizes["W"] = self.correlation.window
        for axes, names in _SHAPES.items():
            shape = tuple(sizes[axis] for axis in axes)
            for name in names.split():
                if values[name] is not None and np.shape(values[name]) != shape:
                    raise_invalid(
                        f"{name}.shape", np.shape(values[name]), f"to be {shape}"
                    )
        finite = ["observed.means", "unobserved.means"]
        if np.isfinite(self.norms.final):  # else the model diverged, and has no cosines
            finite += [
                f"{side}.{name}"
                for side in _SIDES
                for name in ("final", "displacement")
            ]
        for name in finite:
            if not np.all(np.isfinite(values[name])):
                raise ArgumentError(f"Expected {name} to be finite.")

    @property
    def rounds(self) -> int:
        """Number of rounds T."""
        return len(self.observed.means)

    @property
    def share_done(self) -> float:
        """Share of the planned rounds; 1 if nobody said how many those are."""
        planned = self.design.num_rounds or self.rounds
        return min(1.0, self.rounds / planned) if self.rounds else 1.0

    @property
    def num_canaries(self) -> int:
        """Number of observed canaries k."""
        return self.observed.count

    def shares(self) -> np.ndarray:
        """`presence` times the weights of the canaries, ``(T, k)``."""
        weights = self.mechanism.canary_weights
        return self.presence if weights is None else self.presence * weights

    def signal_known(self) -> bool:
        """Whether it is known how much the canaries added in each of their rounds."""
        return bool(
            np.all(np.isfinite(self.mechanism.added[self.presence.any(axis=1)]))
        )

    def round_weights(self) -> Floats:
        """Weight of each round's mean in θ_T − θ_0, ``(T,)``.

        Raises:
            ValueError: with an optimizer other than SGD, whose model is no weighted sum of means.
        """
        server = self.mechanism.server
        if not server.linear or server.learning_rates is None:
            raise_invalid("server", server.name, "to be sgd, for weights of the rounds")
        return sgd_weights(server.learning_rates, server.momentum)

    def delta_cosines(self) -> tuple[Floats, Floats]:
        """Cosines with the model deltas θ_t − θ_{t−1}, for observed and unobserved canaries.

        With server SGD they follow from the means: each delta is a sum of past means, discounted
        by the momentum.

        Raises:
            ValueError: if the optimizer is not linear and the record holds no such cosines.
        """
        if self.observed.deltas is not None and self.unobserved.deltas is not None:
            return self.observed.deltas, self.unobserved.deltas
        if not (server := self.mechanism.server).linear:
            raise_invalid("server", server.name, "to be sgd, or cosines with deltas")
        norms = self.norms.deltas[:, None]
        found = []
        for side in (self.observed, self.unobserved):
            step = side.means * self.norms.means[:, None]
            for t in range(1, len(step)):
                step[t] += server.momentum * step[t - 1]
            step *= np.asarray(server.learning_rates)[:, None]  # SGD has them
            found.append(quotients(step, norms))
        return found[0], found[1]

    def by_name(self) -> dict[str, Any]:
        """Every value by its name, such as "dim" or "norms.means"."""
        return {
            n: value
            for n, value in _values(self)
            if not dataclasses.is_dataclass(value)
        }

    def with_values(self, **values: Any) -> AuditRecord:
        """The record with other values.

        Canaries were projected out of the final model by what they should have added to it. Who
        changes that (the server's steps, contributions, weights) has no ε of the final model, but
        from `RunAuditor.record`, which is told in time.

        Args:
            values: by name, or by the end of a name that no other value has: ``delta``,
                ``noise_multiplier``, ``**{"norms.means": …}``; parts likewise.

        Raises:
            ArgumentError: for what is not the name of one value.
        """
        known = [name for name, _ in _values(self)]
        given = {}
        for name, value in values.items():
            found = (
                [name]
                if name in known
                else [n for n in known if n.endswith(f".{name}")]
            )
            if len(found) != 1:
                raise_invalid(
                    "name", name, f"to be that of one value of a record, found {found}"
                )
            given[found[0]] = value
        changed: AuditRecord = _with_values(self, given)
        if self.running.signals is None or changed.running is not self.running:
            return changed
        added = self.mechanism.added, changed.mechanism.added
        if np.allclose(*added, atol=0.0, equal_nan=True) and np.array_equal(
            self.shares(), changed.shares()
        ):
            return changed
        # They were of what canaries added by the values before.
        return dataclasses.replace(
            changed, running=dataclasses.replace(self.running, signals=None)
        )

    def save(self, path: str | os.PathLike[str], *, private: bool = True) -> Path:
        """Write the record to ``path`` (a NumPy archive without pickles); replaces atomically.

        Args:
            path: where to.
            private: for its owner alone (mode 0600), because a record holds the seeds.
        """
        write_values(Path(path), self.by_name(), private=private)
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> AuditRecord:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is not a record, is damaged, or has another schema; the message is one
                line with the file and the name of the value.
        """
        values = read_values(Path(path))
        try:
            record: AuditRecord = part_of(cls, values)
            _check_lengths(record)
        except (TypeError, ValueError) as error:
            raise refusal(Path(path), WHAT, error) from error
        return record


def _check_lengths(record: AuditRecord) -> None:
    for name, series in record.metrics.items():
        if series.ndim != 1:
            raise_invalid(
                f"metrics.{name[:40]}.shape", series.shape, "to have one axis"
            )
    for names in _SERIES:
        found = {len(record.metrics[name]) for name in names if name in record.metrics}
        if len(found) > 1:
            listed = ", ".join(names)
            raise ArgumentError(
                f"Expected metrics {listed} of one length, found {found}."
            )
    mechanism = record.mechanism
    clients = record.clients
    if mechanism.server.linear and mechanism.server.learning_rates is None:
        raise ArgumentError(
            "Expected mechanism.server.learning_rates, as the server is sgd."
        )
    factor = record.correlation.factor
    if factor is not None and not np.all(factor[:, 0] > 0):
        raise ArgumentError("Expected correlation.factor[:, 0] to be > 0.")
    ids, offsets, weights = clients.ids, clients.offsets, clients.weights
    if weights is not None and (ids is None or weights.shape != ids.shape):
        raise_invalid(
            "clients.weights.shape", weights.shape, "to be that of clients.ids"
        )
    if ids is not None and offsets is not None:
        fits = np.shape(offsets) == (record.rounds + 1,) and np.ndim(ids) == 1
        if (
            not fits
            or offsets[0]
            or offsets[-1] != len(ids)
            or np.any(np.diff(offsets) < 0)
        ):
            raise ArgumentError(
                f"Expected clients.offsets to rise from 0 to {len(ids)} in {record.rounds + 1} "
                "steps."
            )


def _values(part: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(part):
        name, value = f"{above}{field.name}", getattr(part, field.name)
        yield name, value
        if dataclasses.is_dataclass(value):
            yield from _values(value, f"{name}.")


def _with_values(part: Any, values: Mapping[str, Any]) -> Any:
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        field, _, rest = name.partition(".")
        if rest:
            inner.setdefault(field, {})[rest] = value
        else:
            own[field] = value
    for field, changed in inner.items():
        own[field] = _with_values(own.get(field, getattr(part, field)), changed)
    return dataclasses.replace(part, **own)
