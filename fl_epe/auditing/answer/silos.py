"""What a federation of a few silos leaks of one record: `SiloAnswer`, and what a silo is told.

Silos (hospitals, banks) train by DP-SGD on records (patients) of their own, and upload models. For
each adversary there is a `SiloLine`: ε of a record as it was measured, what is proved, what theory
allows, and the linear limit. Theory is the privacy accountant's ε of every step, which holds for
all that is made of the steps. The linear limit is exact where gradients do not depend on the model,
and else no bound (docs/notes/silos.md).

Answers leave a silo as text, so that nothing else does.

Examples:
    >>> line = SiloLine("server", epsilon=2.1, low=1.8, high=2.5, theory=3.0, releases=30)
    >>> answer = SiloAnswer("north", "record", 1e-5, 0.95, rounds=30, canaries=200, lines=(line,))
    >>> SiloAnswer.from_json(answer.to_json()) == answer
    True
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any, Literal, Self, get_args

from fl_epe.checks import raise_invalid

SiloAdversary = Literal["server", "partner", "outsider", "public"]
"""Who looks: the server, another silo, whoever sees every average, whoever has the last model."""

SEEN_OF_SILOS: dict[SiloAdversary, str] = {
    "server": "the silo's upload of each round",
    "partner": "every round's average, less its own upload",
    "outsider": "every round's average",
    "public": "the last model",
}
"""What each adversary sees; all know the gradients of the silo's other records."""

RECORDS = "fl_epe.records"
"""The name under which messages and states hold what is the audit's."""

_NUMBERS = ("epsilon", "low", "high", "scale", "proved", "theory", "linear_limit")


@dataclasses.dataclass(frozen=True)
class SiloLine:
    """ε of one record of a silo, against one adversary.

    Attributes:
        adversary: who looks.
        epsilon: as measured; ``None`` if it was not.
        low: lower end of its interval.
        high: upper end of its interval.
        scale: κ, what is left of a canary in what the adversary sees, over what it added.
        proved: the record's ε is above this; ``None`` without a bound. What would be above theory
            holds with 99.99% in place of the confidence, as it accuses the silo.
        theory: the accountant's ε of every step, in nats; infinite without noise, ``None`` if no
            theorem is known to apply.
        linear_limit: ε by the claimed noise if gradients did not depend on the model; ``None`` if
            it is not known. No bound.
        releases: what the adversary saw, in the numbers above.
        reason: why ε was not measured, as a sentence without its full stop; empty if it was.
        doubts: what makes it unreliable or changes its reading, likewise.
    """

    adversary: SiloAdversary
    epsilon: float | None = None
    low: float | None = None
    high: float | None = None
    scale: float | None = None
    proved: float | None = None
    theory: float | None = None
    linear_limit: float | None = None
    releases: int = 0
    reason: str = ""
    doubts: tuple[str, ...] = ()

    @property
    def exceeds_theory(self) -> bool:
        """Whether what is proved is more than theory allows: a defect of the silo."""
        return self.theory is not None and (self.proved or 0.0) > self.theory


@dataclasses.dataclass(frozen=True)
class SiloAnswer:
    """What leaves a silo: its answer, and nothing else of its audit unless it says so.

    Attributes:
        silo: its name, or the number of its node.
        unit: whose privacy: "record", or "person of 3 records".
        delta: target δ of every ε.
        confidence: of the intervals (two-sided) and of the proofs (one-sided).
        rounds: in which the silo has trained.
        canaries: canary records (or persons) that took part; ``None`` where that would tell
            how many records the silo has, see `to_leave`.
        lines: one for each adversary, in the order of `SEEN_OF_SILOS`.
        faults: how the silo's training is not what its privacy accounting assumes, in sentences
            without a full stop.
        notes: what a reader should know besides, likewise.
        design: sampling rate, steps, batch and noise by name; ``None`` unless the silo shares them.
        records: the records of what others see, as files in base64, by adversary; ``None`` unless
            the silo shares its scores.
    """

    silo: str
    unit: str
    delta: float
    confidence: float
    rounds: int
    canaries: int | None
    lines: tuple[SiloLine, ...] = ()
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    design: dict[str, float] | None = None
    records: dict[str, str] | None = None

    def to_json(self) -> str:
        """As a JSON text; an infinite number is the text "inf"."""
        values = dataclasses.asdict(self)
        for line in values["lines"]:
            line |= {
                name: "inf" if line[name] == math.inf else line[name]
                for name in _NUMBERS
            }
        return json.dumps(values, ensure_ascii=False, allow_nan=False)

    def to_leave(self) -> str:
        """`to_json` for others: the number of canaries tells that of the records."""
        shown = (
            self
            if self.design is not None
            else dataclasses.replace(self, canaries=None)
        )
        return shown.to_json()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`, of a text from a silo.

        Raises:
            ValueError: if it is no such text.
        """
        with _reading("the answer of a silo", text):
            values = json.loads(text)
            values["lines"] = tuple(_line(line) for line in values["lines"])
            for name in ("faults", "notes"):
                values[name] = tuple(map(str, values[name]))
            return cls(**values)


@contextlib.contextmanager
def _reading(what: str, text: str) -> Iterator[None]:
    """An error in this context is one of the text, which is not ``what`` it should be."""
    try:
        yield
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"Expected {what}, got {text[:40]!r}…") from error


def _line(values: dict[str, Any]) -> SiloLine:
    numbers = {
        name: None if values[name] is None else float(values[name]) for name in _NUMBERS
    }
    line = SiloLine(
        **(values | numbers | {"doubts": tuple(map(str, values["doubts"]))})
    )
    if line.adversary not in get_args(SiloAdversary):
        raise_invalid(
            "adversary", line.adversary, f"to be one of {', '.join(SEEN_OF_SILOS)}"
        )
    return line


@dataclasses.dataclass(frozen=True)
class FederationFacts:
    """What a silo cannot know of its federation, and is told with the last model.

    Attributes:
        rounds: of the federation that released a model.
        taken: the numbers of those, from 1, in which the silo's upload arrived.
        silos: that took part; ``None`` if that is not known.
        others: in each round of ``taken`` share of the energy of the other silos' weighted uploads
            that is left without those of a partner and its allies, in [0, 1]; empty if nobody can
            see uploads. A partner is then measured only if the silo was told that all are alike.
        allies: silos that look together with a partner, itself included.
        server: "sgd" if the model is moved by the average, with ``momentum``; else the name of
            what moves it.
        momentum: of the server.
        learning_rate: of the server.
    """

    rounds: int
    taken: tuple[int, ...]
    silos: int | None
    others: tuple[float, ...] = ()
    allies: int = 1
    server: str = "sgd"
    momentum: float = 0.0
    learning_rate: float = 1.0

    def to_json(self) -> str:
        """As a JSON text."""
        return json.dumps(dataclasses.asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`.

        Raises:
            ValueError: if it is no such text.
        """
        with _reading("facts of a federation", text):
            values = json.loads(text)
            values |= {name: tuple(values[name]) for name in ("taken", "others")}
            return cls(**values)
