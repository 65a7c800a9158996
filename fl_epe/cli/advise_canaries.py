"""``fl-epe advise canaries``: how many canaries show that ε exceeds a claim."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from fl_epe.checks import ArgumentError, check_count, check_positive, finite
from fl_epe.cli.console import print_json, print_lines, terminal

_PARTICIPATIONS_TRIED = (1, 2, 4, 8, 16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canaries:
    """How many canaries, rounds and participations show that ε exceeds a claim.

    Until the lower bound of a report exceeds a claimed ε with a wanted probability, by simulating
    audits of Gaussian scores. With few canaries a report cannot show a large ε, whatever leaks.

    Examples:
        fl-epe advise canaries --true-epsilon 8 --claimed 4
        fl-epe advise canaries --noise-multiplier 1 --claimed 4 --clients-per-round 24

    Attributes:
        claimed: ε that the lower bound is to exceed.
        true_epsilon: ε that the run really has for a canary's participations; needed without
            --noise-multiplier.
        noise_multiplier: z of the sum: the true ε is then that of the Gaussian mechanism, for an
            adversary who sees every round, and several numbers of participations are tried.
        participations: rounds in which each canary takes part (default: 1, or with
            --noise-multiplier 1, 2, 4, 8 and 16).
        clients_per_round: real clients of a round; the rounds that have room for as many canaries
            are then told.
        delta: target δ.
        confidence: of the lower bound, one-sided.
        power: wanted probability that the bound exceeds the claim.
        json: print JSON instead of text.
    """

    NAMES: ClassVar = {"epsilon": "--true-epsilon"}

    claimed: float
    true_epsilon: float | None = None
    noise_multiplier: float | None = None
    participations: int | None = None
    clients_per_round: float | None = None
    delta: float = 1e-5
    confidence: float = 0.95
    power: float = 0.8
    json: bool = False

    def __post_init__(self) -> None:
        if (self.true_epsilon is None) == (self.noise_multiplier is None):
            raise ArgumentError(
                "Expected {true_epsilon} or {noise_multiplier} to be given, and only one of them.",
                true_epsilon=self.true_epsilon,
                noise_multiplier=self.noise_multiplier,
            )
        if self.noise_multiplier is not None:
            check_positive("noise_multiplier", self.noise_multiplier)
        if self.participations is not None:
            check_count("participations", self.participations)
        if self.clients_per_round is not None:
            check_positive("clients_per_round", self.clients_per_round)

    def __call__(self, words: Sequence[str]) -> int:
        """Print it."""
        from fl_epe.accounting import gaussian_epsilon
        from fl_epe.limit import canaries_for_epsilon
        from fl_epe.reporting import canary_lines

        z = self.noise_multiplier
        tried = _PARTICIPATIONS_TRIED if z is not None else (1,)
        found = [
            canaries_for_epsilon(
                gaussian_epsilon(z, self.delta, participations) if z else self.true_epsilon or 0.0,
                self.claimed,
                self.delta,
                confidence=self.confidence,
                power=self.power,
                participations=participations,
                room=self.clients_per_round,
            )
            for participations in (tried if self.participations is None else (self.participations,))
        ]
        if self.json:
            rows = [
                dataclasses.asdict(one)
                | {"true_epsilon": finite(one.true_epsilon), "ceiling": finite(one.ceiling)}
                for one in found
            ]
            print_json({"power": self.power, "advice": rows})
        else:
            print_lines(terminal(), canary_lines(found, self.power))
        return 0
