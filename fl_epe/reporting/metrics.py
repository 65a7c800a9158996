"""How well a run learned: clip norm, lost updates, and what was measured on held-out data."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from fl_epe.auditing import AuditRecord
from fl_epe.reporting.numbers import JSON, as_json


@dataclasses.dataclass(frozen=True)
class MetricsSummary:
    """The course of the training.

    Attributes:
        clip_norm: of the last round; NaN without clipping.
        absent: number of lost updates.
        accuracy, loss: the last ones on held-out data; ``None`` if they were not measured.
        metric: what the task measures beside its loss; "" for nothing.
        value: the last one of another metric than accuracy; ``None`` if it was not measured.
    """

    clip_norm: float = math.nan
    absent: int = 0
    accuracy: float | None = None
    loss: float | None = None
    metric: str = "accuracy"
    value: float | None = None

    def held_out(self) -> list[tuple[str, str]]:
        """Names and last values of the metric, if there is one, and of the loss, for reading."""
        found = list[tuple[str, str]]()
        if self.accuracy is not None and math.isfinite(self.accuracy):
            found.append(("accuracy", f"{self.accuracy:.1%}"))
        elif self.metric and self.value is not None and math.isfinite(self.value):
            found.append((self.metric.replace("_", " "), f"{self.value:.4g}"))
        if self.loss is not None and math.isfinite(self.loss):
            found.append(("loss", f"{self.loss:.4g}"))
        return found

    def to_dict(self) -> JSON:
        """As JSON values, without what was not measured."""
        out: JSON = {"clip_norm": as_json(self.clip_norm), "absent": self.absent}
        measured = {"accuracy": self.accuracy, "loss": self.loss, "value": self.value}
        if self.value is not None:
            out["metric"] = self.metric
        return out | {name: as_json(value) for name, value in measured.items() if value is not None}


def metrics_of(record: AuditRecord) -> MetricsSummary:
    """The course of the training, from a record."""
    metric, last = record.design.metric, _last(record, "eval_accuracy")
    return MetricsSummary(
        clip_norm=float(record.mechanism.clip_norms[-1]) if record.rounds else math.nan,
        absent=0 if record.clients.absent is None else int(record.clients.absent.sum()),
        accuracy=last if metric == "accuracy" else None,
        loss=_last(record, "eval_loss"),
        metric=metric,
        value=last if metric not in ("accuracy", "") else None,
    )


def _last(record: AuditRecord, name: str) -> float | None:
    values = record.metrics.get(name, np.empty(0))
    return float(values[-1]) if len(values) else None
