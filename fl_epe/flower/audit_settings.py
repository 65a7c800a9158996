"""The arguments of `CanaryAudit`: their defaults, which go together, and what is made of them."""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing import LEAST_FOR_NULL, RunAuditor
from fl_epe.canaries import SCORE_MEMORY, CanaryKind
from fl_epe.checks import check_probability
from fl_epe.flower.client_canaries import CanarySecret, ClientCanaries
from fl_epe.flower.reply_kind import ReplyKind
from fl_epe.flower.self_auditing import OwnAuditor, SelfAuditing
from fl_epe.flower.sources import ClientAnswers, OwnCanaries, ServerCanaries, Source
from fl_epe.flower.wrapped import Wrapped
from fl_epe.schedules import Cohort, ShuffledEpochs
from fl_epe.seeding import generator
from fl_epe.verdict import VerdictRule

_SCHEDULE = 0  # stream of the canaries' rounds
_ANY_STRATEGY = {"num_canaries", "delta", "seed", "verdict"}
_FOR_SERVER_CANARIES = {"participations", "inject", "num_examples", "replies"}


@dataclasses.dataclass(frozen=True)
class AuditSettings:
    """What an audit was asked for; `CanaryAudit` describes the arguments.

    Raises:
        ValueError: for an argument out of range, or that does not go with the strategy.
    """

    wrapped: Wrapped
    num_canaries: int
    delta: float
    unobserved: int
    seed: int = dataclasses.field(default_factory=lambda: secrets.randbits(128), repr=False)
    participations: float = 1
    rounds: int | None = None
    inject: str = "auto"
    clients: float | Collection[int] | None = None
    identity: Callable[[int], int] | None = None
    num_examples: float | None = None
    canary_norm: float | None = None
    noise_multiplier: float | None = None
    leave_out: tuple[str, ...] = ()
    score_memory: int = SCORE_MEMORY
    replies: ReplyKind | None = None
    averages: bool = False
    max_share: float = 0.1
    checkpoint: str | Path | None = None
    verdict: str = "auto"
    canary_kind: CanaryKind = "rotation"
    canary_secret: CanarySecret = "seed"  # noqa: S105 - which one, not one
    fresh_seed: bool = False

    @classmethod
    def of(cls, wrapped: Wrapped, **arguments: Any) -> AuditSettings:
        """From the arguments of `CanaryAudit`, where ``None`` stands for the default."""
        given = {name: value for name, value in arguments.items() if value is not None}
        if isinstance(wrapped.layers[0], SelfAuditing):
            why = f"with {wrapped.description}, which schedules and scores its canaries itself"
            _refuse(given, given.keys() - _ANY_STRATEGY, why)
            given.setdefault("verdict", getattr(_config_of(wrapped), "verdict", "auto"))
        if "clients" not in given:
            _refuse(given, {"canary_secret"}, "without clients: nothing leaves the server")
        else:
            why = "with clients, who answer whenever they are asked, with their own weight"
            _refuse(given, _FOR_SERVER_CANARIES, why)
            given.setdefault("max_share", 0.5)  # how many are chosen is said by ``clients``
        if given.get("canary_secret") == "server":
            given.setdefault("canary_kind", "sphere")
        once = given.get("participations", 1) <= 1 and "clients" not in given
        few = max(2, given["num_canaries"] // 4)  # enough, as the null is then exact
        many = max(LEAST_FOR_NULL, given["num_canaries"])
        given.setdefault("unobserved", few if once else many)
        given["leave_out"] = tuple(given.get("leave_out", ()))
        given["fresh_seed"] = "seed" not in given
        return cls(wrapped, **given)

    def __post_init__(self) -> None:
        check_probability("delta", self.delta)
        for name, least in {"num_canaries": 2, "seed": 0, "unobserved": 0, "rounds": 1}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"Expected {name}={value} >= {least}.")
        for name in ("num_examples", "canary_norm", "participations"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"Expected {name}={value} in (0, inf).")
        if self.canary_kind not in get_args(CanaryKind):
            kinds = list(get_args(CanaryKind))
            raise ValueError(f"Expected canary_kind={self.canary_kind!r} to be one of {kinds}.")
        if self.canary_secret not in get_args(CanarySecret):
            secrets_ = list(get_args(CanarySecret))
            raise ValueError(f"Expected canary_secret={self.canary_secret!r} in {secrets_}.")
        if self.canary_secret == "server" and self.canary_kind == "rotation":  # noqa: S105
            raise ValueError(
                "Expected canary_kind='sphere' with canary_secret='server', got 'rotation': from"
                " one rotated canary a client can compute the others, see docs/notes/rotation.md."
            )
        z = self.noise_multiplier
        if z is not None and not 0 <= z < math.inf:
            raise ValueError(f"Expected noise_multiplier={z} in [0, inf).")
        if not 0 < self.max_share <= 1:
            raise ValueError(f"Expected max_share={self.max_share} in (0, 1].")
        if self.replies not in (None, "model", "delta"):
            raise ValueError(f"Expected replies={self.replies!r} to be 'model' or 'delta'.")
        inclusion = getattr(_config_of(self.wrapped), "inclusion", "fixed")
        VerdictRule.parse(self.verdict).check_inclusion(inclusion)
        self._check_strategy()
        self._client_canaries()

    def _check_strategy(self) -> None:
        if self.inject not in ("auto", "add", "replace"):
            raise ValueError(f"Expected inject={self.inject!r} to be 'auto', 'add' or 'replace'.")
        if self.inject == "add" and self.wrapped.strict():
            raise ValueError(
                "Expected inject='auto' or 'replace', got 'add': with an accountant a round with"
                " more replies than num_sampled_clients fails."
            )
        strategy = self.wrapped.layers[0]
        if isinstance(strategy, SelfAuditing) and self.num_canaries != strategy.num_canaries:
            raise ValueError(
                f"Expected num_canaries={self.num_canaries} to be {strategy.num_canaries}:"
                f" {self.wrapped.description} schedules its canaries itself."
            )

    def _client_canaries(self) -> ClientCanaries | None:
        if self.clients is None:
            return None
        return ClientCanaries(
            self.num_canaries,
            self.unobserved,
            self.seed,
            self.clients,
            self.identity,
            self.leave_out,
            acknowledge=True,
            kind=self.canary_kind,
        )

    def auditor(self) -> RunAuditor | OwnAuditor:
        """Who scores the canaries."""
        strategy = self.wrapped.layers[0]
        if isinstance(strategy, SelfAuditing):
            return OwnAuditor(strategy, self.delta, self.seed)
        return RunAuditor(
            self.num_canaries,
            self.unobserved,
            seed=self.seed,
            delta=self.delta,
            server=self.wrapped.server(averages=self.averages),
            score_memory=self.score_memory,
            planned=self.num_canaries * self.participations if self.clients is None else None,
            kind=self.canary_kind,
        )

    def source(self, rounds: int | None, auditor: Callable[[], RunAuditor]) -> Source:
        """Where the canaries come from, in a run of so many rounds.

        Args:
            rounds: of the run; ``None`` if not known.
            auditor: who scores the canaries, once the model is known.

        Raises:
            ValueError: if the server needs to know the number of rounds, and does not.
        """
        if isinstance(self.wrapped.layers[0], SelfAuditing):
            return OwnCanaries()
        if (clients := self._client_canaries()) is not None:
            directions = _Vectors(auditor) if self.canary_secret == "server" else None  # noqa: S105
            return ClientAnswers(
                self.wrapped, clients, self.canary_norm, self.max_share, directions
            )
        if rounds is None:
            raise ValueError(
                "Expected rounds=… in CanaryAudit, those of all starts together, as start() does"
                " not tell them, or has a single one."
            )
        schedule = ShuffledEpochs(rounds, self.participations)
        return ServerCanaries(
            self.wrapped,
            _Spread(schedule, self.seed),
            self.num_canaries,
            _Vectors(auditor),
            self.seed,
            self.inject,
            self.num_examples,
            self.canary_norm,
            self.replies,
            self.max_share,
        )

    def noise_multipliers(self, *, averages: bool) -> tuple[float | None, float | None]:
        """The noise multiplier of the run, and that of the sum alone; ``None`` if not known."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier, self.noise_multiplier
        return self.wrapped.noise_multipliers(averages=averages)

    def to_config(self, *, averages: bool) -> dict[str, Any]:
        """What a record's configuration keeps of the settings."""
        by_server = self.clients is None
        return {
            "task": self.wrapped.description,
            "num_canaries": self.num_canaries,
            "unobserved": self.unobserved,
            "participations": self.participations if by_server else None,
            "canaries_come_from": f"server ({self.inject})" if by_server else "clients",
            "num_examples": self.num_examples,
            "canary_norm": self.canary_norm,
            "caveat": self.wrapped.caveat(averages=averages),
            "max_share": self.max_share,
            "noise_is_for": self.wrapped.expected_replies(),
            "verdict": self.verdict,
            "canary_kind": self.canary_kind,
        }


def _config_of(wrapped: Wrapped) -> object:
    """The settings of a strategy that has canaries of its own; ``None`` for other strategies."""
    strategy = wrapped.layers[0]
    return getattr(strategy, "config", None) if isinstance(strategy, SelfAuditing) else None


@dataclasses.dataclass
class _Spread:
    """The rounds of so many canaries."""

    schedule: ShuffledEpochs
    seed: int

    def __call__(self, number: int) -> list[Cohort]:
        return list(self.schedule.cohorts(number, generator(self.seed, _SCHEDULE)))


class _Vectors:
    """Canaries by their numbers, in the same memory for every round."""

    def __init__(self, auditor: Callable[[], RunAuditor]) -> None:
        self._auditor = auditor
        self._room = np.empty((0, 0), np.float32)

    def __call__(self, numbers: Sequence[int]) -> NDArray[np.float32]:
        canaries = self._auditor().canaries
        if len(self._room) < len(numbers) or self._room.shape[1] != canaries.dim:
            self._room = np.empty((len(numbers), canaries.dim), np.float32)
        return canaries.vectors(numbers, out=self._room[: len(numbers)])


def _refuse(given: Mapping[str, Any], names: Collection[str], why: str) -> None:
    for name, value in given.items():
        if name in names:
            raise ValueError(f"Expected no {name}={value!r} {why}.")
