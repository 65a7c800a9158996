"""`AuditRecord`: the stored values of an audited run, from which any statistic is computed.

A run in which nothing was measured has a record too: its estimates raise `NotMeasured`.

Every value has one name, its path: ``record.norms.means`` is "norms.means" in the text of an error
and in a record's file. A few fields have another name in files, see `file.FILE_NAMES`.

Read one with ``AuditRecord.load("record.npz")`` and pass it to `epsilon_from_record`, or read its
values: ``record.observed.means`` are the cosines of the observed canaries with each round's mean.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fl_epe.archive import refusal
from fl_epe.auditing.record.file import (
    DESCRIPTION,
    build_part,
    read_values,
    write_values,
)
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
from fl_epe.mechanism import discounted_sums, sgd_weights

_SIDES = ("observed", "unobserved")

# Names of arrays by their axes: T rounds, k observed and u unobserved canaries, a window of W
# rounds for correlations, P participations of clients, and S = T + 1 offsets.
_SHAPES = {
    "Tk": "presence mechanism.canary_weights running.scores running.signals observed.means "
    "observed.model_updates observed.residuals observed.canary_sums",
    "Tu": "unobserved.means unobserved.model_updates unobserved.residuals unobserved.canary_sums",
    "k": "observed.final observed.displacement observed.canary_displacement observed.ids",
    "u": "unobserved.final unobserved.displacement unobserved.canary_displacement unobserved.ids",
    "T": "norms.means norms.model_updates norms.residuals norms.canary_sums mechanism.clip_norms "
    "mechanism.contributions mechanism.server.learning_rates clients.absent",
    "TW": "correlation.factor",
    "TT": "mechanism.strategy",
    "P": "clients.ids clients.weights",
    "S": "clients.offsets",
}

# Groups of metrics that have one length.
_SERIES = (
    ("eval_round", "eval_loss", "eval_accuracy", "eval_auc"),
    ("train_loss", "train_accuracy", "unclipped", "cohort"),
)


@dataclasses.dataclass(frozen=True, eq=False)
class AuditRecord:
    """Scores of observed and unobserved canaries, and the facts about the run.

    Attributes:
        dim: dimension d of the model.
        delta: target δ of the run.
        observed: cosines of the k canaries that took part.
        unobserved: cosines of the u canaries that never took part.
        presence: ``(T, k)`` bool, the rounds of each observed canary.
        norms: norms of the vectors with which the cosines are computed.
        mechanism: participation, clipping, noise and the server's step.
        clients: the rounds of each real client.
        metrics: series by name, such as "train_loss" ``(T,)`` or "eval_round" and
            "eval_accuracy", of equal length.
        design: the settings that were fixed before the run.
        findings: the observations during the run.
        provenance: seeds, versions and faults.
        correlation: the correlation of the residuals of the rounds.
        running: the scores after each round, from which ε was estimated during the run.

    Raises:
        ArgumentError: for a value out of range or of another shape, with its name.
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
    correlation: RoundCorrelation = dataclasses.field(
        default_factory=RoundCorrelation
    )
    running: RunningScores = dataclasses.field(default_factory=RunningScores)

    def __post_init__(self) -> None:
        check_probability("delta", self.delta)
        check_count("dim", self.dim)
        for name in _SIDES:
            shape = np.shape(getattr(self, name).means)
            if len(shape) != 2:
                raise_invalid(
                    f"{name}.means.shape", shape, "to be (rounds, canaries)"
                )
        values = self.by_name()
        ids = self.clients.ids
        sizes = {
            "T": self.rounds,
            "k": self.num_canaries,
            "u": self.unobserved.count,
            "W": self.correlation.window,
            "P": 0 if ids is None else np.size(ids),
            "S": self.rounds + 1,
        }
        for axes, names in _SHAPES.items():
            expected = tuple(sizes[axis] for axis in axes)
            for name in names.split():
                shape = np.shape(values[name])
                if values[name] is not None and shape != expected:
                    raise_invalid(f"{name}.shape", shape, f"to be {expected}")
        finite_names = ["means"]
        # If the model is not finite, there are no cosines with it.
        if np.isfinite(self.norms.final):
            finite_names += ["final", "displacement"]
        for side in _SIDES:
            for name in finite_names:
                if not np.all(np.isfinite(values[f"{side}.{name}"])):
                    raise ArgumentError(f"Expected {side}.{name} to be finite.")

    @property
    def rounds(self) -> int:
        """Number of rounds T."""
        return len(self.observed.means)

    @property
    def share_done(self) -> float:
        """Fraction of the planned rounds that are done; 1 if their number is not known."""
        planned = self.design.num_rounds
        if not planned or not self.rounds:
            return 1.0
        return min(1.0, self.rounds / planned)

    @property
    def num_canaries(self) -> int:
        """Number of observed canaries k."""
        return self.observed.count

    def shares(self) -> np.ndarray:
        """Each canary's contribution to each round, ``(T, k)``; 1 is a median client's.

        It is divided by `Mechanism.contribution_norms`.
        """
        weights = self.mechanism.canary_weights
        if weights is None:
            return self.presence
        return self.presence * weights

    def signal_known(self) -> bool:
        """Whether the canaries' contribution in each of their rounds is known."""
        has_canaries = self.presence.any(axis=1)
        return bool(
            np.all(np.isfinite(self.mechanism.contribution_norms[has_canaries]))
        )

    def round_weights(self) -> Floats:
        """The weight of each round's mean in the displacement θ_T − θ_0, ``(T,)``.

        Raises:
            ValueError: for an optimizer other than SGD, as its model is no weighted sum of means.
        """
        server = self.mechanism.server
        if not server.is_linear or server.learning_rates is None:
            raise_invalid(
                "server", server.name, "to be sgd, for weights of the rounds"
            )
        return sgd_weights(server.learning_rates, server.momentum)

    def model_update_cosines(self) -> tuple[Floats, Floats]:
        """Cosines with the model updates θ_t − θ_{t−1}, for observed and unobserved canaries.

        If the record has none, they are computed from the means, which is possible for server
        SGD: each update is a sum of the means so far, discounted by the momentum.

        Raises:
            ValueError: for another optimizer, if the record holds no such cosines.
        """
        if (
            self.observed.model_updates is not None
            and self.unobserved.model_updates is not None
        ):
            return self.observed.model_updates, self.unobserved.model_updates
        server = self.mechanism.server
        if not server.is_linear:
            raise_invalid(
                "server",
                server.name,
                "to be sgd, or observed.model_updates to be known",
            )
        learning_rates = np.asarray(server.learning_rates)[:, None]
        norms = self.norms.model_updates[:, None]

        def cosines_of(side: CanaryCosines) -> Floats:
            means = side.means * self.norms.means[:, None]
            velocities = discounted_sums(means, server.momentum)
            return quotients(velocities * learning_rates, norms)

        return cosines_of(self.observed), cosines_of(self.unobserved)

    def by_name(self) -> dict[str, Any]:
        """Every value by its name, such as "dim" or "norms.means"."""
        return {
            name: value
            for name, value in _named_fields(self)
            if not dataclasses.is_dataclass(value)
        }

    def with_values(self, **values: Any) -> AuditRecord:
        """The record with other values.

        Canaries were projected out of the final model by their expected contributions. If you
        change these (the server's steps, contributions, weights), the record has no ε of the
        final model; pass such values to `RunAuditor.record` instead.

        Args:
            values: the values, or parts, by name. The end of a name is enough if only one name
                ends so: ``delta``, ``noise_multiplier``, ``**{"norms.means": …}``.

        Raises:
            ArgumentError: for a name that is not that of exactly one value.
        """
        names = [name for name, _ in _named_fields(self)]
        full_names = {}
        for name in values:
            matches = [name]
            if name not in names:
                matches = [full for full in names if full.endswith(f".{name}")]
            if len(matches) != 1:
                raise_invalid(
                    "name",
                    name,
                    f"to be that of one value of a record, found {matches}",
                )
            full_names[matches[0]] = values[name]
        changed: AuditRecord = _with_values(self, full_names)
        if self.running.signals is None or changed.running is not self.running:
            return changed
        has_same_contributions = np.allclose(
            self.mechanism.contribution_norms,
            changed.mechanism.contribution_norms,
            atol=0.0,
            equal_nan=True,
        )
        has_same_shares = np.array_equal(self.shares(), changed.shares())
        if has_same_contributions and has_same_shares:
            return changed
        # The signals were computed from the previous values during the run.
        running = dataclasses.replace(self.running, signals=None)
        return dataclasses.replace(changed, running=running)

    def save(
        self, path: str | os.PathLike[str], *, private: bool = True
    ) -> Path:
        """Write the record to a NumPy archive without pickles, which is replaced atomically.

        Args:
            path: the path of the file.
            private: whether only the owner may read it (mode 0600), as a record holds the
                seeds.
        """
        write_values(Path(path), self.by_name(), private=private)
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> AuditRecord:
        """Read a record that `save` wrote.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is not a record, is damaged, or has another schema; the message is one
                line with the file and the name of the value.
        """
        values = read_values(Path(path))
        try:
            record: AuditRecord = build_part(cls, values)
            _check_edited(record)
        except (TypeError, ValueError) as error:
            raise refusal(Path(path), DESCRIPTION, error) from error
        return record


def _check_edited(record: AuditRecord) -> None:
    """The checks that `AuditRecord` does not make, as only an edited file can fail them."""
    for name, series in record.metrics.items():
        if series.ndim != 1:
            raise_invalid(
                f"metrics.{name[:40]}.shape", series.shape, "to have one axis"
            )
    for names in _SERIES:
        series_lengths = {
            len(record.metrics[name])
            for name in names
            if name in record.metrics
        }
        if len(series_lengths) > 1:
            raise ArgumentError(
                f"Expected metrics {', '.join(names)} of one length, found {series_lengths}."
            )
    server = record.mechanism.server
    if server.is_linear and server.learning_rates is None:
        raise ArgumentError(
            "Expected mechanism.server.learning_rates, as the server is sgd."
        )
    factor = record.correlation.factor
    if factor is not None and not np.all(factor[:, 0] > 0):
        raise ArgumentError("Expected correlation.factor[:, 0] to be > 0.")
    ids = record.clients.ids
    offsets = record.clients.offsets
    if ids is None or offsets is None:
        return
    is_ascending = np.all(np.diff(offsets) >= 0)
    if offsets[0] != 0 or offsets[-1] != len(ids) or not is_ascending:
        raise ArgumentError(
            f"Expected clients.offsets to increase from 0 to {len(ids)}."
        )


def _named_fields(part: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of a part and of its parts, by name."""
    for field in dataclasses.fields(part):
        name = f"{prefix}{field.name}"
        value = getattr(part, field.name)
        yield name, value
        if dataclasses.is_dataclass(value):
            yield from _named_fields(value, f"{name}.")


def _with_values(part: Any, values: Mapping[str, Any]) -> Any:
    """A part of a record with other values, by their names in it."""
    fields: dict[str, Any] = {}
    inner_values: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        field, _, inner_name = name.partition(".")
        if inner_name:
            inner_values.setdefault(field, {})[inner_name] = value
        else:
            fields[field] = value
    for field, inner in inner_values.items():
        previous = fields.get(field, getattr(part, field))
        fields[field] = _with_values(previous, inner)
    return dataclasses.replace(part, **fields)
