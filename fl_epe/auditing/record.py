"""`AuditRecord`: all that an audited run leaves behind, enough for any later statistic."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import UNREADABLE, check_probability
from fl_epe.mechanism import sgd_weights
from fl_epe.old_names import OLD_NAMES, with_new_names

Floats = NDArray[np.float64]

SCHEMA = 1
"""Version of the file format; a file with a newer one is refused."""


@dataclasses.dataclass(frozen=True, eq=False)
class AuditRecord:
    """Scores of observed and unobserved canaries, and what is known about the run.

    Shapes: T rounds, k observed and u unobserved canaries. Cosines lie in [-1, 1].

    Attributes:
        dim: dimension d of the model.
        delta: target δ of the run.
        cohort_size: expected cohort size n, the denominator of the mean.
        noise_multiplier: z of the run, ``None`` if unknown.
        sum_noise_multiplier: z of the clients' sum alone, ``None`` if unknown.
        participation: kind of schedule: "epochs", "poisson", "deployment" (whenever a strategy
            asks the client), or a name from elsewhere.
        canary_participations: expected participations of an observed canary.
        server: the optimizer by name and constants, e.g. ``{"name": "sgd", "momentum": 0.9}``;
            where its step size changes, ``learning_rates`` has that of every round.
        observed: ``(T, k)`` cosines with the released mean of each round, momentum undone.
        unobserved: ``(T, u)`` the same.
        presence: ``(T, k)`` bool, which observed canary took part when.
        clip_norms: ``(T,)``; NaN where nothing was clipped.
        mean_norms: ``(T,)`` norm of each released mean.
        delta_norms: ``(T,)`` norm of each model delta θ_t − θ_{t−1}.
        observed_final, unobserved_final: ``(k,)``, ``(u,)`` cosines with θ_T.
        observed_displacement, unobserved_displacement: the same with θ_T − θ_0.
        final_norm, displacement_norm: their norms.
        observed_delta, unobserved_delta: ``(T, k)``, ``(T, u)`` cosines with the model deltas,
            where they do not follow from the means (an optimizer that is not linear).
        observed_residual, unobserved_residual: cosines with the released mean less the real
            clients' part, where it is known; ``residual_norms`` ``(T,)``.
        contributions: ``(T,)`` norm of what one canary that takes part adds to the released mean;
            ``clip_norms / cohort_size`` by default, NaN where it is not known.
        inclusion: "fixed", or "coin" if each canary took part by an independent fair coin.
        observed_ids, unobserved_ids: numbers of the canaries in their `CanarySet`.
        client_ids, client_offsets: real clients of round t are
            ``client_ids[client_offsets[t]:client_offsets[t + 1]]``.
        absent: ``(T,)`` clients and canaries whose update was lost.
        metrics: series by name, such as "train_loss" ``(T,)`` or "eval_round" and
            "eval_accuracy", of equal length.
        config: settings of the run, as JSON values.
        seeds: seeds by name; the noise seed only if the user chose it.
        versions: versions of the packages that matter.
        faults: the first messages about lost updates.
    """

    dim: int
    delta: float
    cohort_size: float
    noise_multiplier: float | None
    sum_noise_multiplier: float | None
    participation: str
    canary_participations: float
    server: dict[str, Any]
    observed: Floats
    unobserved: Floats
    presence: NDArray[np.bool_]
    clip_norms: Floats
    mean_norms: Floats
    delta_norms: Floats
    observed_final: Floats
    unobserved_final: Floats
    observed_displacement: Floats
    unobserved_displacement: Floats
    final_norm: float
    displacement_norm: float
    observed_delta: Floats | None = None
    unobserved_delta: Floats | None = None
    observed_residual: Floats | None = None
    unobserved_residual: Floats | None = None
    residual_norms: Floats | None = None
    contributions: Floats | None = None
    inclusion: str = "fixed"
    observed_ids: NDArray[np.int64] | None = None
    unobserved_ids: NDArray[np.int64] | None = None
    client_ids: NDArray[np.int64] | None = None
    client_offsets: NDArray[np.int64] | None = None
    absent: NDArray[np.int64] | None = None
    metrics: dict[str, Floats] = dataclasses.field(default_factory=dict)
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    seeds: dict[str, int | None] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    faults: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_probability("delta", self.delta)
        if self.dim < 1:
            raise ValueError(f"Expected dim={self.dim} >= 1.")
        T, k = np.shape(self.observed)
        u = np.shape(self.unobserved)[1]
        if k < 2:
            raise ValueError(f"Expected observed canaries={k} >= 2.")
        shapes = {"presence": (T, k), "unobserved": (T, u), "observed_final": (k,)}
        shapes |= {"unobserved_final": (u,), "observed_displacement": (k,)}
        shapes |= {"unobserved_displacement": (u,), "observed_ids": (k,), "unobserved_ids": (u,)}
        shapes |= dict.fromkeys(
            ("clip_norms", "mean_norms", "delta_norms", "absent", "contributions"), (T,)
        )
        for side, size in (("observed", k), ("unobserved", u)):
            shapes |= {f"{side}_{what}": (T, size) for what in ("delta", "residual")}
        for name, shape in shapes.items():
            value = getattr(self, name)
            if value is not None and np.shape(value) != shape:
                raise ValueError(f"Expected {name}.shape={np.shape(value)} to be {shape}.")
        for name in ("observed", "unobserved", "observed_final", "unobserved_final"):
            if not np.all(np.isfinite(getattr(self, name))):
                raise ValueError(f"Expected {name} to be finite.")

    @property
    def rounds(self) -> int:
        """Number of rounds T."""
        return len(self.observed)

    @property
    def num_canaries(self) -> int:
        """Number of observed canaries k."""
        return int(self.observed.shape[1])

    def signal_known(self) -> bool:
        """Whether it is known for every round how much a canary adds to what is released."""
        known = self.clip_norms if self.contributions is None else self.contributions
        return bool(np.all(np.isfinite(known)))

    def learning_rates(self) -> Floats:
        """Step size of the server in every round, ``(T,)``."""
        if "learning_rates" in self.server:
            return np.asarray(self.server["learning_rates"], np.float64)
        return np.full(self.rounds, float(self.server["learning_rate"]))

    def round_weights(self) -> Floats:
        """Weight of each round's mean in θ_T − θ_0, ``(T,)``.

        Raises:
            ValueError: with an optimizer other than SGD, whose model is no weighted sum of means.
        """
        if self.server.get("name") != "sgd":
            raise ValueError(f"Expected server={self.server} to be sgd, for weights of the rounds.")
        return sgd_weights(self.learning_rates(), self.server["momentum"])

    def delta_cosines(self) -> tuple[Floats, Floats]:
        """Cosines with the model deltas θ_t − θ_{t−1}, for observed and unobserved canaries.

        With server SGD they follow from the means: each delta is a sum of past means, discounted
        by the momentum.

        Raises:
            ValueError: if the optimizer is not linear and the record holds no such cosines.
        """
        if self.observed_delta is not None and self.unobserved_delta is not None:
            return self.observed_delta, self.unobserved_delta
        if self.server.get("name") != "sgd":
            raise ValueError(f"Expected delta cosines for server={self.server}.")
        return self._accumulate(self.observed), self._accumulate(self.unobserved)

    def _accumulate(self, cosines: Floats) -> Floats:
        step: Floats = cosines * self.mean_norms[:, None]
        for t in range(1, len(step)):
            step[t] += self.server["momentum"] * step[t - 1]
        step *= self.learning_rates()[:, None]
        norms = self.delta_norms[:, None]
        return np.divide(step, norms, out=np.zeros_like(step), where=norms > 0)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the record to ``path`` (a NumPy archive without pickles); replaces atomically."""
        path = Path(path)
        arrays, meta = _split(self)
        text = json.dumps({"format": "fl_epe.AuditRecord", "schema": SCHEMA, **meta})
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        with part.open("wb") as file:
            arrays["meta"] = np.frombuffer(text.encode(), np.uint8)
            np.savez_compressed(file, allow_pickle=False, **arrays)
        part.replace(path)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> AuditRecord:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is not a record, or one with a newer schema.
        """
        arrays, meta = _read(Path(path))
        schema = meta.pop("schema")
        if schema > SCHEMA:
            raise ValueError(
                f"Expected schema={schema} of {path} <= {SCHEMA}: written by a newer fl_epe."
            )
        metrics = {
            key.removeprefix("metrics."): arrays.pop(key)
            for key in list(arrays)
            if key.startswith("metrics.")
        }
        meta["faults"] = tuple(meta["faults"])
        known = {field.name for field in dataclasses.fields(cls)}
        if missing := {"dim", "delta", "observed", "presence"} - arrays.keys() - meta.keys():
            raise ValueError(f"Expected {path} to hold {sorted(missing)}: not a whole record.")
        named = with_new_names({**meta, **arrays})
        values = {name: value for name, value in named.items() if name in known}
        return cls(metrics=metrics, **values)


def installed_versions() -> dict[str, str]:
    """Versions of the packages that decide a run's result, as far as they are installed."""
    names = ("fl-epe", "flwr", "torch", "numpy", "scipy", "dp-accounting")
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # torch is optional
            found[name] = importlib.metadata.version(name)
    return found


def _split(record: AuditRecord) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    arrays: dict[str, NDArray[Any]] = {
        f"metrics.{key}": np.asarray(value) for key, value in record.metrics.items()
    }
    meta: dict[str, Any] = {}
    old = {new: name for name, new in OLD_NAMES.items()}  # files keep the names of schema 1
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.name == "metrics" or value is None:
            continue
        if isinstance(value, np.ndarray):
            arrays[field.name] = value
        else:
            meta[old.get(field.name, field.name)] = value
    meta.setdefault("noise_multiplier", None)
    meta.setdefault("sum_noise_multiplier", None)
    return arrays, meta


def _read(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    if not path.exists():
        raise FileNotFoundError(f"Expected path={str(path)!r} to exist.")
    refusal = f"Expected path={str(path)!r} to be a record written by AuditRecord.save"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        meta = json.loads(bytes(arrays.pop("meta")))
    except UNREADABLE as error:
        raise ValueError(f"{refusal} ({type(error).__name__}).") from error
    if not isinstance(meta, dict) or meta.pop("format", None) != "fl_epe.AuditRecord":
        raise ValueError(f"{refusal}.")
    return arrays, meta
