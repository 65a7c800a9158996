"""`Wrapped`: the properties of a strategy for an audit; some strategies are refused."""

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
_MAX_NAMED = 3  # the number of arrays that a text names
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
    """A strategy and the strategies that it wraps, outermost first.

    Args:
        strategy: the outermost strategy.
        with_canaries: whether canaries take part, which is not possible with some strategies.

    Attributes:
        layers: the strategies; the last one wraps no other.
        base: the innermost strategy.
        description: the class names, such as
            "DifferentialPrivacyServerSideFixedClipping(FedAvg)".
        clips_on_server: whether the server clips the updates that it receives.
        plain_layers: whether all layers around the innermost are Flower's own DP wrappers.
        noise_is_apart: whether the outermost of two strategies only adds noise to the result of
            the other one, so that the noise can be measured.
        averages: whether the arrays are averaged by weight, so that a canary's share is known.
            The ``aggregate_train`` of a subclass is observed when it runs, see `shares_of`.
        reply_kind: the kind of replies, as far as the strategy's type shows it.

    Raises:
        TypeError: for an object that is not a message-API strategy.
        ValueError: for a strategy that cannot be audited correctly, with the reason.
    """

    def __init__(
        self, strategy: Strategy, *, with_canaries: bool = True
    ) -> None:
        layers = [strategy]
        inner = getattr(strategy, "strategy", None)
        while isinstance(inner, Strategy):
            layers.append(inner)
            inner = getattr(inner, "strategy", None)
        for layer in layers:
            _check(layer, with_canaries=with_canaries)
        self.layers = layers
        self.base = layers[-1]
        names = [type(layer).__name__ for layer in layers]
        self.description = "(".join(names) + ")" * (len(names) - 1)
        self.clips_on_server = any(
            isinstance(layer, _ON_SERVER) for layer in layers
        )
        are_dp = [isinstance(layer, _FLOWER_DP) for layer in layers[:-1]]
        self._has_dp = any(are_dp)
        self.plain_layers = all(are_dp)
        # Functions of the instance that somebody has replaced.
        replaced = vars(strategy).keys() & {
            "aggregate_train",
            "_add_noise_to_aggregated_arrays",
        }
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
        """The number with this name of the outermost strategy that has one, or the default."""
        for layer in self.layers:
            value = getattr(layer, name, None)
            if isinstance(value, (int, float)):
                return value
        return default

    def clip_norm(self) -> float:
        """The clip norm of the coming aggregation; NaN if none is known."""
        return float(self._first("clipping_norm", math.nan))

    def noise_std(self) -> float | None:
        """The claimed standard deviation of the coming noise; ``None`` if not separable."""
        _, z = self.noise_multipliers()
        expected = self.expected_replies()
        if not self.noise_is_apart or not z or not expected:
            return None
        return z * self.clip_norm() / expected

    def target_clipped(self) -> float | None:
        """The share of clipped updates that an adaptive clip norm targets; else ``None``."""
        return cast("float | None", self._first("target_clipped_quantile"))

    def expected_replies(self) -> int | None:
        """The number of replies for which noise is added; ``None`` for any number."""
        value = self._first("num_sampled_clients")
        if value is None:
            return None
        return int(value)

    def room(self, clients: int) -> float:
        """The number of replies that can be added to ``clients`` with the same noise."""
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
        """The server's step with the average: SGD, or the description of an unknown step."""
        base = self.base
        if not self.averages:
            return self.description
        if isinstance(base, flower.FedAvgM) and base.server_opt:
            return ServerSGD(base.server_learning_rate, base.server_momentum)
        return ServerSGD()

    def caveat(self, *, averages: bool) -> str | None:
        """A caveat about this combination for readers of the report; ``None`` without one.

        Args:
            averages: whether the innermost strategy is known to only average.
        """
        base = self.base
        has_momentum = isinstance(base, flower.FedAvgM) and base.server_opt
        only_averages = self._averaging_base and not has_momentum
        if not self._has_dp or averages or only_averages:
            return None
        text = (
            f"The noise is added after {type(base).__name__} has made its step: the clip norm does"
            " not bound how far one client moves the model, and the analytical ε does not hold."
        )
        if isinstance(base, flower.FedAvgM):
            text += (
                " FedAvgM goes on from arrays without that noise, so an adversary who compares"
                " rounds may learn more than is measured here."
            )
        return text

    def unclipped(self, arrays: Mapping[str, Array]) -> str | None:
        """A caveat about arrays that DP may not clip; ``None`` without such arrays."""
        names = [
            name
            for name, array in arrays.items()
            if not array.shape or "float" not in array.dtype
        ]
        if not names or not self._has_dp:
            return None
        shown = ", ".join(names[:_MAX_NAMED])
        if len(names) > _MAX_NAMED:
            shown += ", …"
        return (
            f"No ε holds for what clients answer in {shown}: no canary moves these arrays, and"
            " Flower's DP may not clip them (0-d arrays, and integers from Flower 1.45 on)."
        )

    def noise_multipliers(
        self, *, averages: bool = False
    ) -> tuple[float | None, float | None]:
        """The claimed noise multiplier, and that of the sum alone; ``None`` if not known.

        An adaptive wrapper stores only the noise multiplier of the sum. It is larger than the
        claimed one, as the noisy count leaks as well. The claimed one follows from both.

        Args:
            averages: whether the innermost strategy is known to only average.
        """
        if (averages or self.averages) and len(self.layers) == 1:
            return 0.0, 0.0
        for layer in self.layers:
            if isinstance(layer, _ADAPTIVE) and layer.noise_multiplier > 0:
                z = layer.noise_multiplier
                # A client's vote, minus 1/2, is ±1/2: the sensitivity of the count.
                z_of_count = 2 * layer.clipped_count_stddev
                return (z**-2 + z_of_count**-2) ** -0.5, z
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
            f"Expected a strategy that is not audited already, got {name}."
        )
