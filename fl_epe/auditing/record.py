"""`AuditRecord`: all that an audited run leaves behind, enough for any later statistic.

A run in which nothing was measured has a record too: its estimates raise `NotMeasured`.

Read one with ``AuditRecord.load("record.npz")`` and hand it to `epsilon_from_record`, or look into
it: ``record.observed.means`` are the cosines of the observed canaries with each round's mean.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.archive import refusal
from fl_epe.auditing.measured_null import EDGES, MeasuredNull
from fl_epe.auditing.record_file import WHAT, read_values, write_values
from fl_epe.auditing.record_parts import (
    CanaryCosines,
    ClientLog,
    Floats,
    Mechanism,
    Norms,
    Provenance,
)
from fl_epe.checks import check_probability
from fl_epe.mechanism import sgd_weights

_PARTS: dict[str, type] = {
    "observed": CanaryCosines,
    "unobserved": CanaryCosines,
    "norms": Norms,
    "mechanism": Mechanism,
    "clients": ClientLog,
    "provenance": Provenance,
    "null": MeasuredNull,
}
_OTHER_NAMES = {
    side: {
        "means": side,
        "final": f"{side}_final",
        "displacement": f"{side}_displacement",
        "deltas": f"{side}_delta",
        "residuals": f"{side}_residual",
        "sums": f"{side}_canary_sum",
        "part": f"{side}_canary_part",
        "ids": f"{side}_ids",
    }
    for side in ("observed", "unobserved")
}
_OTHER_NAMES["norms"] = {
    "means": "mean_norms",
    "deltas": "delta_norms",
    "residuals": "residual_norms",
    "sums": "canary_sum_norms",
    "part": "canary_part_norm",
    "final": "final_norm",
    "displacement": "displacement_norm",
}
_OTHER_NAMES["null"] = {
    field.name: f"null_{field.name}" for field in dataclasses.fields(MeasuredNull)
}
_OTHER_NAMES["clients"] = {"ids": "client_ids", "offsets": "client_offsets"}
_TOP = ("dim", "delta", "presence", "metrics")
_PLACES = {name: (name, "") for name in _TOP} | {
    _OTHER_NAMES.get(part, {}).get(field.name, field.name): (part, field.name)
    for part, kind in _PARTS.items()
    for field in dataclasses.fields(kind)
}
"""Part and field of the value that has this name in a record's file and in error messages."""


@dataclasses.dataclass(frozen=True, eq=False)
class AuditRecord:
    """Scores of observed and unobserved canaries, and what is known about the run.

    Attributes:
        dim: dimension d of the model.
        delta: target δ of the run.
        observed: cosines of the canaries that took part, k of them.
        unobserved: cosines of those that never did.
        presence: ``(T, k)`` bool, which observed canary took part when.
        norms: of the vectors that the cosines are taken with.
        mechanism: participation, clipping, noise and the server's step.
        clients: which real clients took part when.
        metrics: series by name, such as "train_loss" ``(T,)`` or "eval_round" and
            "eval_accuracy", of equal length.
        provenance: settings, seeds, versions and faults.
        null: of the statistics, measured on many canaries that took no part.

    Raises:
        ValueError: for a value out of range or of another shape, by its name in `by_name`.
    """

    dim: int
    delta: float
    observed: CanaryCosines
    unobserved: CanaryCosines
    presence: NDArray[np.bool_]
    norms: Norms
    mechanism: Mechanism
    clients: ClientLog = dataclasses.field(default_factory=ClientLog)
    metrics: dict[str, Floats] = dataclasses.field(default_factory=dict)
    provenance: Provenance = dataclasses.field(default_factory=Provenance)
    null: MeasuredNull = dataclasses.field(default_factory=MeasuredNull)

    def __post_init__(self) -> None:
        check_probability("delta", self.delta)
        if self.dim < 1:
            raise ValueError(f"Expected dim={self.dim} >= 1.")
        T, k = np.shape(self.observed.means)
        shapes: dict[str, tuple[int, ...]] = {"presence": (T, k)}
        for side, count in (("observed", k), ("unobserved", self.unobserved.count)):
            series = (side, f"{side}_delta", f"{side}_residual", f"{side}_canary_sum")
            shapes |= dict.fromkeys(series, (T, count))
            vectors = ("final", "displacement", "canary_part", "ids")
            shapes |= {f"{side}_{name}": (count,) for name in vectors}
        per_round = ("clip_norms", "mean_norms", "delta_norms", "absent", "contributions")
        shapes |= dict.fromkeys((*per_round, "canary_sum_norms"), (T,))
        shapes["canary_weights"] = (T, k)
        statistics = len(self.null.statistics)
        shapes |= dict.fromkeys(("null_means", "null_deviations"), (statistics,))
        shapes["null_counts"] = (statistics, len(EDGES) + 1)
        values = self.by_name()
        for name, shape in shapes.items():
            if values[name] is not None and np.shape(values[name]) != shape:
                raise ValueError(f"Expected {name}.shape={np.shape(values[name])} to be {shape}.")
        finite = ["observed", "unobserved"]
        if np.isfinite(self.norms.final):  # else the model diverged, and has no cosines
            finite += ["observed_final", "unobserved_final"]
        for name in finite:
            if not np.all(np.isfinite(values[name])):
                raise ValueError(f"Expected {name} to be finite.")

    @property
    def rounds(self) -> int:
        """Number of rounds T."""
        return len(self.observed.means)

    @property
    def num_canaries(self) -> int:
        """Number of observed canaries k."""
        return self.observed.count

    def shares(self) -> NDArray[Any]:
        """`presence` times the weights of the canaries, ``(T, k)``."""
        weights = self.mechanism.canary_weights
        return self.presence if weights is None else self.presence * weights

    def signal_known(self) -> bool:
        """Whether it is known for every round how much a canary adds to what is released."""
        run = self.mechanism
        known = run.clip_norms if run.contributions is None else run.contributions
        return bool(np.all(np.isfinite(known)))

    def learning_rates(self) -> Floats:
        """Step size of the server in every round, ``(T,)``."""
        server = self.mechanism.server
        if "learning_rates" in server:
            return np.asarray(server["learning_rates"], np.float64)
        return np.full(self.rounds, float(server["learning_rate"]))

    def round_weights(self) -> Floats:
        """Weight of each round's mean in θ_T − θ_0, ``(T,)``.

        Raises:
            ValueError: with an optimizer other than SGD, whose model is no weighted sum of means.
        """
        server = self.mechanism.server
        if server.get("name") != "sgd":
            raise ValueError(f"Expected server={server} to be sgd, for weights of the rounds.")
        return sgd_weights(self.learning_rates(), server["momentum"])

    def delta_cosines(self) -> tuple[Floats, Floats]:
        """Cosines with the model deltas θ_t − θ_{t−1}, for observed and unobserved canaries.

        With server SGD they follow from the means: each delta is a sum of past means, discounted
        by the momentum.

        Raises:
            ValueError: if the optimizer is not linear and the record holds no such cosines.
        """
        if self.observed.deltas is not None and self.unobserved.deltas is not None:
            return self.observed.deltas, self.unobserved.deltas
        if self.mechanism.server.get("name") != "sgd":
            raise ValueError(f"Expected delta cosines for server={self.mechanism.server}.")
        return self._accumulate(self.observed.means), self._accumulate(self.unobserved.means)

    def _accumulate(self, cosines: Floats) -> Floats:
        step: Floats = cosines * self.norms.means[:, None]
        for t in range(1, len(step)):
            step[t] += self.mechanism.server["momentum"] * step[t - 1]
        step *= self.learning_rates()[:, None]
        norms = self.norms.deltas[:, None]
        return np.divide(step, norms, out=np.zeros_like(step), where=norms > 0)

    def by_name(self) -> dict[str, Any]:
        """Every value under the flat name that it has in a record's file, such as "mean_norms"."""
        parts = {name: getattr(self, name) for name in (*_TOP, *_PARTS)}
        return {
            name: getattr(parts[part], field) if field else parts[part]
            for name, (part, field) in _PLACES.items()
        }

    @classmethod
    def from_names(cls, values: Mapping[str, Any]) -> AuditRecord:
        """The inverse of `by_name`; names that have a default may be left out.

        Raises:
            TypeError: for a name that a record does not have, or one that is missing.
        """
        if unknown := sorted(values.keys() - _PLACES.keys()):
            raise TypeError(f"Expected names of a record, got {unknown}: see AuditRecord.by_name.")
        fields: dict[str, Any] = {part: {} for part in _PARTS}
        for name, value in values.items():
            part, field = _PLACES[name]
            if field:
                fields[part][field] = value
            else:
                fields[part] = value
        return cls(**{**fields, **{part: kind(**fields[part]) for part, kind in _PARTS.items()}})

    def with_values(self, **values: Any) -> AuditRecord:
        """The record with other values, by their names in `by_name`."""
        return self.from_names({**self.by_name(), **values})

    def in_order(self) -> AuditRecord:
        """The record with its canaries by their ids, in which order every run writes them.

        Bounds that split the scores at random depend on the order, and a report must not.
        """
        observed, first = _by_id(self.observed)
        unobserved, _ = _by_id(self.unobserved)
        weights = self.mechanism.canary_weights
        if weights is not None:
            weights = np.ascontiguousarray(weights[:, first])
        return dataclasses.replace(
            self,
            observed=observed,
            unobserved=unobserved,
            presence=np.ascontiguousarray(self.presence[:, first]),
            mechanism=dataclasses.replace(self.mechanism, canary_weights=weights),
        )

    def save(self, path: str | os.PathLike[str], *, private: bool = True) -> Path:
        """Write the record to ``path`` (a NumPy archive without pickles); replaces atomically.

        Args:
            path: where to.
            private: for its owner alone (mode 0600), because a record holds the seeds.
        """
        write_values(Path(path), self.by_name(), private=private)
        return Path(path)

    def without_seeds(self) -> AuditRecord:
        """The record without any seed, to share: every estimate and report is the same."""
        return self.with_values(seeds={})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> AuditRecord:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is not a record, is damaged, or has a newer schema; the message is one
                line with the file and the field.
        """
        values = read_values(Path(path))
        try:
            return cls.from_names({name: values[name] for name in _PLACES if name in values})
        except (TypeError, ValueError) as error:
            raise refusal(Path(path), WHAT, error) from error


def _by_id(side: CanaryCosines) -> tuple[CanaryCosines, slice | NDArray[np.int64]]:
    """A side with its canaries by their ids, and the order; canaries come last in every array."""
    if side.ids is None or np.all(np.diff(side.ids) > 0):
        return side, slice(None)
    order = np.argsort(side.ids, kind="stable")
    values = {field.name: getattr(side, field.name) for field in dataclasses.fields(side)}
    given = {
        name: np.ascontiguousarray(value[..., order])
        for name, value in values.items()
        if value is not None
    }
    return dataclasses.replace(side, **given), order
