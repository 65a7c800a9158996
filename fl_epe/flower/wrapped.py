"""`Wrapped`: what an audit must know about a strategy, and which strategies it refuses."""

import math
from collections.abc import Mapping
from typing import Any, cast

from flwr.app import Array
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from fl_epe.flower.layout import ReplyKind
from fl_epe.mechanism import ServerSGD

_ADAPTIVE = (
    flower.DifferentialPrivacyServerSideAdaptiveClipping,
    flower.DifferentialPrivacyClientSideAdaptiveClipping,
)
_ON_SERVER = (flower.DifferentialPrivacyServerSideFixedClipping, _ADAPTIVE[0])
_FLOWER_DP = (
    *_ON_SERVER,
    flower.DifferentialPrivacyClientSideFixedClipping,
    _ADAPTIVE[1],
)
_NAMED = 3  # arrays of many
_AVERAGING = (flower.FedAvg.aggregate_train, flower.FedAvgM.aggregate_train)
_REFUSED = {
    (
        flower.FedXgbBagging,
        flower.FedXgbCyclic,
    ): "it passes trees on, not numbers",
    (flower.Krum, flower.MultiKrum, flower.Bulyan): (
        "it keeps whole replies and drops outliers, which canaries are"
    ),
}


class Wrapped:
    """A strategy and those that it wraps in turn, outermost first.

    Args:
        strategy: the outermost.
        with_canaries: whether canaries are to take part, which some strategies refuse.

    Attributes:
        layers: at least one strategy; the last wraps nothing.
        base: the innermost strategy.
        description: class names, such as "DifferentialPrivacyServerSideFixedClipping(FedAvg)".
        clips_on_server: whether the server clips what it receives.
        plain_layers: whether all layers around the innermost are Flower's own DP wrappers.
        noise_is_apart: whether all that the outermost does to what the other one makes is to add
            its noise.
        averages: whether the arrays are averaged by weight, so that a canary's share is known. What
            a subclass does that has an ``aggregate_train`` of its own is seen when it runs, see
            `shares_of`.
        reply_kind: what clients answer with, as far as it is known from the strategy's type.

    Raises:
        TypeError: for something that is not a message-API strategy.
        ValueError: for a strategy that cannot be audited honestly, with the reason.
    """

    def __init__(
        self, strategy: Strategy, *, with_canaries: bool = True
    ) -> None:
        _check(strategy, with_canaries=with_canaries)
        layers = [strategy]
        inner = getattr(strategy, "strategy", None)
        while isinstance(inner, Strategy):
            _check(inner, with_canaries=with_canaries)
            layers.append(inner)
            inner = getattr(inner, "strategy", None)
        self.layers = layers
        self.base = layers[-1]
        names = [type(layer).__name__ for layer in layers]
        self.description = "(".join(names) + ")" * (len(names) - 1)
        self.clips_on_server = any(
            isinstance(layer, _ON_SERVER) for layer in layers
        )
        self.plain_layers = all(
            isinstance(layer, _FLOWER_DP) for layer in layers[:-1]
        )
        replaced = vars(strategy).keys() & {
            "aggregate_train",
            "_add_noise_to_aggregated_arrays",
        }
        self._has_dp = any(
            isinstance(layer, _FLOWER_DP) for layer in layers[:-1]
        )
        self.noise_is_apart = (
            len(layers) == 2 and type(strategy) in _FLOWER_DP and not replaced
        )
        self._averaging_base = type(self.base).aggregate_train in _AVERAGING
        self.averages = self.plain_layers and self._averaging_base
        is_flowers = type(self.base).__module__.startswith("flwr.")
        self.reply_kind: ReplyKind | None = None
        if is_flowers or self._averaging_base or self._has_dp:
            self.reply_kind = "model"

    def _first(self, name: str, default: Any = None) -> Any:
        """The number that the outermost strategy with such an attribute has in it."""
        for layer in self.layers:
            value = getattr(layer, name, None)
            if isinstance(value, (int, float)):
                return value
        return default

    def clip_norm(self) -> float:
        """The clip norm of the coming aggregation; NaN where none is known."""
        return float(self._first("clipping_norm", math.nan))

    def noise_std(self) -> float | None:
        """Claimed standard deviation of the coming noise; ``None`` if it cannot be seen apart."""
        z = self.noise_multipliers()[1]
        expected = self.expected_replies()
        if not self.noise_is_apart or not z or not expected:
            return None
        return z * self.clip_norm() / expected

    def target_clipped(self) -> float | None:
        """The share of updates that an adaptive clip norm wants clipped; ``None`` if it stays."""
        return cast("float | None", self._first("target_clipped_quantile"))

    def expected_replies(self) -> int | None:
        """How many replies the noise is meant for; ``None`` where any number will do."""
        value = self._first("num_sampled_clients")
        if value is None:
            return None
        return int(value)

    def room(self, clients: int) -> float:
        """How many replies can be added to so many clients' without changing what noise does."""
        expected = self.expected_replies()
        if expected is None:
            return math.inf
        return max(expected - clients, 0)

    def weighted_by(self) -> str:
        """The metric by which replies are weighted."""
        return str(getattr(self.base, "weighted_by_key", "num-examples"))

    def arrays_key(self) -> str:
        """The name of the model's arrays in a message."""
        return str(getattr(self.base, "arrayrecord_key", "arrays"))

    def server(self) -> ServerSGD | str:
        """What the server does with the average: SGD, or the name of what cannot be undone."""
        base = self.base
        if (
            self.averages
            and isinstance(base, flower.FedAvgM)
            and base.server_opt
        ):
            return ServerSGD(base.server_learning_rate, base.server_momentum)
        if self.averages:
            return ServerSGD()
        return self.description

    def caveat(self, *, averages: bool) -> str | None:
        """What a reader of the report must know about the combination; ``None`` if nothing.

        Args:
            averages: whether the innermost strategy is known to do nothing but average.
        """
        base = self.base
        moves = isinstance(base, flower.FedAvgM) and base.server_opt
        if not self._has_dp or averages or (self._averaging_base and not moves):
            return None
        text = (
            f"The noise is added after {type(base).__name__} has made its step: the clip norm does"
            " not bound what one client moves, and the analytical ε does not hold."
        )
        if isinstance(base, flower.FedAvgM):
            text += (
                " FedAvgM goes on from arrays without that noise, so an adversary who compares"
                " rounds may learn more than is measured here."
            )
        return text

    def unclipped(self, arrays: Mapping[str, Array]) -> str | None:
        """What a reader must know about arrays that DP may not clip; ``None`` without any."""
        names = [
            name
            for name, a in arrays.items()
            if not a.shape or "float" not in a.dtype
        ]
        if not names or not self._has_dp:
            return None
        shown = ", ".join(names[:_NAMED]) + (
            ", …" if len(names) > _NAMED else ""
        )
        return (
            f"No ε holds for what clients answer in {shown}: no canary moves it, and Flower's DP"
            " may not clip it (numbers without an axis, and integers from Flower 1.45 on)."
        )

    def noise_multipliers(
        self, *, averages: bool = False
    ) -> tuple[float | None, float | None]:
        """Claimed noise multiplier, and that of the sum alone; ``None`` if not known.

        An adaptive wrapper keeps only what is left for the sum after its noisy count, so the split
        is undone.

        Args:
            averages: whether the innermost strategy is known to do nothing but average.
        """
        if (averages or self.averages) and len(self.layers) == 1:
            return 0.0, 0.0
        for layer in self.layers:
            if isinstance(layer, _ADAPTIVE) and layer.noise_multiplier > 0:
                z = layer.noise_multiplier
                count_std = layer.clipped_count_stddev
                return (z**-2 + (2 * count_std) ** -2) ** -0.5, z
            if isinstance(layer, _FLOWER_DP):
                return layer.noise_multiplier, layer.noise_multiplier
        return None, None


def _check(strategy: Strategy, *, with_canaries: bool) -> None:
    name = type(strategy).__name__
    if not isinstance(strategy, Strategy):
        raise TypeError(
            f"Expected strategy={name} to be a flwr.serverapp.strategy.Strategy; for legacy "
            "strategies and other frameworks use fl_epe.RunAuditor."
        )
    for kinds, reason in _REFUSED.items():
        if with_canaries and isinstance(strategy, kinds):
            raise ValueError(
                f"Expected a strategy that can be audited, not {name}: {reason}."
            )
    if getattr(strategy, "audits_itself", False):
        raise ValueError(
            f"Expected a strategy that does not audit itself already, got {name}."
        )
