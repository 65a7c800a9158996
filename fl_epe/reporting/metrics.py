"""How well a run learned: clip norm, lost updates, and what was measured on held-out data."""

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
        loss: the last one on held-out data; ``None`` if it was not measured.
        metric: what the task measures beside its loss; "" for nothing.
        value: the last one of that metric; ``None`` if it was not measured.
    """

    clip_norm: float = math.nan
    absent: int = 0
    loss: float | None = None
    metric: str = "accuracy"
    value: float | None = None

    @property
    def accuracy(self) -> float | None:
        """The last one on held-out data; ``None`` if it was not measured."""
        return self.value if self.metric == "accuracy" else None

    def held_out(self) -> list[tuple[str, str]]:
        """Names and last values of the metric, if there is one, and of the loss, for reading."""
        found = list[tuple[str, str]]()
        if self.value is not None and math.isfinite(self.value):
            shown = ".1%" if self.metric == "accuracy" else ".4g"
            found.append((self.metric.replace("_", " "), format(self.value, shown)))
        if self.loss is not None and math.isfinite(self.loss):
            found.append(("loss", f"{self.loss:.4g}"))
        return found

    def to_dict(self) -> JSON:
        """As JSON values, without what was not measured."""
        values: JSON = {"clip_norm": as_json(self.clip_norm), "absent": self.absent}
        if self.metric == "accuracy" and self.value is not None:
            values["accuracy"] = as_json(self.value)
        elif self.value is not None:
            values |= {"metric": self.metric, "value": as_json(self.value)}
        return values if self.loss is None else {**values, "loss": as_json(self.loss)}


def metrics_of(record: AuditRecord) -> MetricsSummary:
    """The course of the training, from a record."""
    metric = record.design.metric
    return MetricsSummary(
        clip_norm=float(record.mechanism.clip_norms[-1]) if record.rounds else math.nan,
        absent=0 if record.clients.absent is None else int(record.clients.absent.sum()),
        loss=_last(record, "eval_loss"),
        metric=metric,
        value=_last(record, "eval_accuracy") if metric else None,
    )


def _last(record: AuditRecord, name: str) -> float | None:
    values = record.metrics.get(name, np.empty(0))
    return float(values[-1]) if len(values) else None
