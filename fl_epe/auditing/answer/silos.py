"""`SiloAnswer`: the privacy leakage of one record in a federation of a few silos.

Silos (hospitals, banks) train by DP-SGD on their records (patients), and upload models. An answer
has a `SiloLine` for each adversary: the measured ε of a record, a lower bound, and the analytical
ε. It also has the linear limit. The analytical ε is the privacy accountant's for all steps, and
holds for everything that is computed from the steps. The linear limit is exact if gradients do not
depend on the model, and no bound otherwise (docs/notes/silos.md).

The text of the answer is all that leaves a silo. To compute it, the silo receives
`FederationFacts`.

Examples:
    >>> line = SiloLine("server", epsilon=2.1, low=1.8, high=2.5, theory=3.0, releases=30)
    >>> answer = SiloAnswer("north", "record", 1e-5, 0.95, rounds=30, canaries=200, lines=(line,))
    >>> SiloAnswer.from_json(answer.to_json()) == answer
    True
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Literal, Self

SiloAdversary = Literal["server", "partner", "outsider", "public"]
"""The server, another silo, an observer of every average, or an observer of the last model."""

SEEN_OF_SILOS: dict[SiloAdversary, str] = {
    "server": "the silo's upload of each round",
    "partner": "every round's average, less its own upload",
    "outsider": "every round's average",
    "public": "the last model",
}
"""What each adversary sees. All of them know the gradients of the silo's other records."""

RECORDS = "fl_epe.records"
"""The name under which messages and states hold the content of the audit."""

# Fields of a line that may be infinite.
_NUMBERS = (
    "epsilon",
    "low",
    "high",
    "scale",
    "proved",
    "theory",
    "linear_limit",
)


@dataclasses.dataclass(frozen=True)
class SiloLine:
    """ε of one record of a silo, against one adversary.

    Attributes:
        adversary: the adversary.
        epsilon: the measured ε; ``None`` if it was not measured.
        low: lower end of the interval of ε.
        high: upper end of the interval of ε.
        scale: κ, the part of a canary's contribution that reaches the adversary's view.
        proved: a lower bound on the record's ε; ``None`` without one. A bound above ``theory``
            has a confidence of 99.99% in place of the answer's, as it accuses the silo.
        theory: the accountant's ε of every step, in nats; infinite without noise, ``None`` if no
            theorem is known to apply.
        linear_limit: ε by the claimed noise if gradients did not depend on the model, which is
            not a bound; ``None`` if it is not known.
        releases: the number of releases that the adversary sees.
        reason: why ε was not measured, as a sentence without its full stop; empty if it was.
        doubts: reasons why ε is unreliable or must be read differently, as sentences without a
            full stop.
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
        """Whether the lower bound exceeds the analytical ε, which shows a defect of the silo."""
        return self.theory is not None and (self.proved or 0.0) > self.theory


@dataclasses.dataclass(frozen=True)
class SiloAnswer:
    """The answer of a silo, which is all that leaves it unless the silo shares more.

    Attributes:
        silo: the silo's name, or the number of its node.
        unit: the unit of privacy: "record", or "person of 3 records".
        delta: target δ of every ε.
        confidence: confidence of the intervals (two-sided) and of the lower bounds (one-sided).
        rounds: number of rounds in which the silo has trained.
        canaries: number of canary records (or persons) that took part; ``None`` if it would
            reveal how many records the silo has, see `to_leave`.
        lines: the line of each adversary, in the order of `SEEN_OF_SILOS`.
        faults: deviations of the silo's training from what its privacy accounting assumes, as
            sentences without a full stop.
        notes: further remarks for the reader, as such sentences.
        design: sampling rate, steps, batch and noise by name; ``None`` unless the silo shares them.
        records: the audit records of the adversaries' views, as files in base64, by adversary;
            ``None`` unless the silo shares its scores.
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
        """The answer as a JSON text, in which an infinite number is the text "inf"."""
        values = dataclasses.asdict(self)
        for line in values["lines"]:
            for name in _NUMBERS:
                if line[name] == math.inf:
                    line[name] = "inf"
        return json.dumps(values, ensure_ascii=False, allow_nan=False)

    def to_leave(self) -> str:
        """`to_json` for other parties, without the number of canaries.

        That number reveals the number of records. It stays if the silo shares its design.
        """
        if self.design is not None:
            return self.to_json()
        return dataclasses.replace(self, canaries=None).to_json()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`, for an answer that this process has stored."""
        values = json.loads(text)
        lines = []
        for line in values["lines"]:
            for name in _NUMBERS:
                if line[name] == "inf":
                    line[name] = math.inf
            line["doubts"] = tuple(line["doubts"])
            lines.append(SiloLine(**line))
        values["lines"] = tuple(lines)
        for name in ("faults", "notes"):
            values[name] = tuple(values[name])
        return cls(**values)


@dataclasses.dataclass(frozen=True)
class FederationFacts:
    """Facts about its federation that a silo cannot know, and receives with the last model.

    Attributes:
        rounds: number of the federation's rounds that released a model.
        upload_rounds: the numbers, from 1, of the rounds among these in which the silo's upload
            arrived.
        silos: the number of silos that took part; ``None`` if it is not known.
        remaining_energies: for each of ``upload_rounds`` the share of the energy of the other
            silos' weighted uploads that remains without those of a partner and its allies, in
            [0, 1]; empty if nobody can see uploads. A partner is then measured only if the silo
            was configured for silos that are all alike.
        allies: number of silos that collude, a partner included.
        server: "sgd" if the average moves the model, with ``momentum``; else the name of the
            server's optimizer.
        momentum: the server's momentum.
        learning_rate: the server's learning rate.
    """

    rounds: int
    upload_rounds: tuple[int, ...]
    silos: int | None
    remaining_energies: tuple[float, ...] = ()
    allies: int = 1
    server: str = "sgd"
    momentum: float = 0.0
    learning_rate: float = 1.0

    def to_json(self) -> str:
        """The facts as a JSON text."""
        return json.dumps(dataclasses.asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`, for a text from the server.

        Raises:
            ValueError: if the text has no such facts.
        """
        try:
            values = json.loads(text)
            for name in ("upload_rounds", "remaining_energies"):
                values[name] = tuple(values[name])
            return cls(**values)
        except (TypeError, KeyError, RecursionError) as error:
            raise ValueError(
                f"Expected facts of a federation, got {text[:40]!r}…"
            ) from error
