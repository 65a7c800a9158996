"""`Task`, the interface of all tasks: the clients' data, a model, a loss and a metric."""

import abc
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch

from fl_epe import models
from fl_epe.archive import error_text, place_of
from fl_epe.checks import raise_invalid
from fl_epe.files import whole_file
from fl_epe.seeding import generator
from fl_epe.tasks import losses
from fl_epe.tasks.losses import ByExample, ClientData, LossSum

_EVALUATION_BATCH = 64  # examples


# A subclass that is a dataclass compares its fields.
@dataclasses.dataclass(frozen=True, eq=False)
class Task(abc.ABC):
    """A federated learning problem.

    The fields of a subclass are its options, which must be hashable and cheap to create. Data
    is loaded when it is first needed and cached by module-level functions, not in the object,
    so that a task pickles as a few bytes.

    Attributes:
        name: the task's name for `load_task`; by default ``"module:Class"``.
        defaults: settings that suit the task better than the defaults of `RunConfig`.
        metric: the metric that `LossSum.correct` adds up; "" if the task only has a loss.
        unit: a word for one client in reports, such as "hospital".
    """

    name: ClassVar[str] = ""
    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    metric: ClassVar[str] = "accuracy"
    unit: ClassVar[str] = "client"

    # If `load_task` found the task in a user's module, this calls it with the same arguments.
    _loader: ClassVar[functools.partial[Any] | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # The default is replaced, and also that of a parent, which has a colon.
        if not cls.name or ":" in cls.name:
            cls.name = f"{cls.__module__}:{cls.__qualname__}"

    @property
    def reference(self) -> str:
        """The reference for `load_task`: the name of the task's class, or ``"module:name"``."""
        if self._loader is None:
            return self.name
        return str(self._loader.args[0])

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a task that was found by name as that name, from which it is loaded again."""
        if self._loader is None:
            return super().__reduce_ex__(protocol)
        return self._loader, ()

    def options(self) -> dict[str, Any]:
        """The options with which `load_task` makes the task again, as JSON values."""
        if self._loader is not None:
            return dict(self._loader.keywords)
        names = [field.name for field in dataclasses.fields(self)]
        return {name: getattr(self, name) for name in names}

    @property
    @abc.abstractmethod
    def num_clients(self) -> int:
        """The number of clients with data; their ids are ``0 … num_clients − 1``."""

    @abc.abstractmethod
    def model(self) -> torch.nn.Module:
        """A fresh model on the CPU.

        The values of its parameters are the initial ones, unless it has a method
        ``initial_values``, see `initial`.
        """

    @abc.abstractmethod
    def client(self, client_id: int) -> ClientData:
        """The examples of one client.

        Raises:
            ValueError: for a ``client_id`` outside ``0 … num_clients − 1``.
        """

    def sizes(self, client_ids: np.ndarray) -> np.ndarray:
        """The number of examples of each of these clients, with the shape of ``client_ids``.

        They balance the work of the nodes, so only their ratios matter. By default all are 1; a
        task that knows the numbers without reading the examples overrides this.
        """
        return np.ones_like(client_ids)

    @abc.abstractmethod
    def held_out(self) -> ClientData:
        """The held-out examples, which no client has, for `evaluate`."""

    @abc.abstractmethod
    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> LossSum:
        """Loss and correct predictions of a batch, given the model's outputs for it."""

    def batch_loss(
        self, model: Callable[..., torch.Tensor], batch: ClientData
    ) -> LossSum:
        """Call ``model`` with the inputs of a batch, and `loss` with its outputs.

        Override it to call the model in another way, e.g. to compute only some of its outputs.
        Clients then train one after another (`fl_epe.training.vectorized`), unless `by_example`
        is overridden, too.
        """
        return self.loss(models.call_model(model, batch.inputs), batch.targets)

    def by_example(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> ByExample | None:
        """The summands of `batch_loss` by example, given the model's outputs for a batch.

        If a task overrides this, one call serves all clients that are trained at once. By
        default it is ``None``, and `loss` is called for each client.
        """
        return None

    @functools.cached_property
    def dim(self) -> int:
        """Number of trainable parameters of the model."""
        parameters = models.trainable(models.prepared(self.model))
        return sum(parameter.numel() for parameter in parameters)

    def initial(self, seed: int) -> np.ndarray:
        """The initial model: the values of a fresh `model`, drawn from ``seed``.

        If the model has a method ``initial_values(random)``, the values are those that it
        yields, an array for each parameter.

        Returns:
            float32 of shape (dim,), the trainable parameters in the order of
            ``model().parameters()``.
        """
        model = models.prepared(self.model, seed)
        initial_values: Any = getattr(model, "initial_values", None)
        if initial_values is None:
            parts = [part.detach().numpy() for part in models.trainable(model)]
        else:
            parts = initial_values(generator(seed))
        return np.concatenate([part.ravel() for part in parts])

    def notes(self) -> list[str]:
        """Sentences about the parts of the model that are not trained or not audited, if any.

        Raises:
            ValueError: if the parameters cannot be one float32 vector, or the model or the loss
                fails on the first examples.
        """
        model = models.prepared(self.model)
        notes = models.model_notes(model)
        models.bind_parameters(model, torch.tensor(self.initial(0)))
        examples = self.held_out().map(lambda part: part[:2])
        if len(examples) < 2:
            # BatchNorm could not compute a variance.
            return notes

        def loss() -> torch.Tensor:
            return self.batch_loss(model, examples).loss

        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                model.train()
                notes += models.training_notes(model, lambda: loss().detach())
                notes += _loss_notes(loss())
        # A user's model and loss may raise any exception.
        except Exception as error:
            reason = f"{error_text(error)}{place_of(error)}"
            text = f"The model or the loss fails on two held-out examples: {reason}."
            raise ValueError(f"{text} {_shapes(examples)}.") from error
        if warned:
            notes.append(f"The model or the loss warns: {warned[0].message}")
        return notes

    def evaluate(self, theta: np.ndarray) -> dict[str, float]:
        """The loss and the metric of the model ``theta``, as means over the held-out examples.

        They are under the names "loss" and `metric`. With two classes there is also "ROC AUC",
        see `losses.area_under_curve`. The numbers are the same, to the bit, with any number of
        threads. BatchNorm uses averages over these examples.

        Args:
            theta: float32 of shape (dim,).

        Raises:
            ValueError: for another shape.
        """
        model = self._trained(theta)
        data = self.held_out()
        outputs: list[torch.Tensor] = []
        if losses.has_two_classes(data.targets):
            model.register_forward_hook(
                lambda _model, _inputs, output: outputs.append(output)
            )
        batches = data.batches(_EVALUATION_BATCH)
        with models.one_thread(), torch.inference_mode():
            sums = [self.batch_loss(model, batch) for batch in batches]
        examples = max(1, sum(int(part.examples) for part in sums))
        scores = {"loss": sum(part.loss.item() for part in sums) / examples}
        if self.metric:
            scores[self.metric] = (
                sum(float(part.correct) for part in sums) / examples
            )
        if outputs:
            area = losses.area_under_curve(outputs, data.targets)
            if area is not None:
                scores["ROC AUC"] = area
        return scores

    def _trained(self, theta: np.ndarray) -> torch.nn.Module:
        """The model ``theta`` for evaluation, with BatchNorm's averages over held-out data."""
        if theta.shape != (self.dim,):
            raise_invalid("theta.shape", theta.shape, f"== ({self.dim},)")
        model = models.prepared(self.model).eval()
        models.bind_parameters(model, torch.tensor(theta, dtype=torch.float32))
        layers = models.batch_norms(model)
        if layers:
            # Only these layers are in training mode, so that they compute averages.
            for layer in layers:
                layer.reset_running_stats()
                # Without momentum, the statistics are means over all batches.
                layer.momentum = None
                layer.train()
            with models.one_thread(), torch.inference_mode():
                for batch in self.held_out().batches(_EVALUATION_BATCH):
                    if len(batch) > 1:  # one example has no variance
                        models.call_model(model, batch.inputs)
        return model.eval()

    def save_model(self, theta: np.ndarray, path: Path) -> None:
        """Write the ``state_dict`` of the model ``theta`` to a file, atomically.

        Args:
            theta: float32 of shape (dim,).
            path: the path of the file, which is replaced if it exists.

        Raises:
            ValueError: for another shape.
            OSError: for example if the disk is full; an existing file is not changed.
        """
        with whole_file(path, private=False) as file:
            try:
                state = self._trained(theta).state_dict()
                torch.save(
                    {name: part.clone() for name, part in state.items()}, file
                )
            # This is torch's error for a full disk.
            except RuntimeError as error:
                raise OSError(str(error).partition("\n")[0]) from error

    def chance_accuracy(self) -> float | None:
        """Accuracy of always predicting the most frequent class of the held-out examples.

        It is ``None`` if an example has several targets or one that is not a class, or if the
        metric is not accuracy.
        """
        targets = self.held_out().targets
        has_one_class = targets.dim() == 1 and not targets.is_floating_point()
        if self.metric != "accuracy" or not has_one_class or not len(targets):
            return None
        return float(torch.bincount(targets).max()) / len(targets)

    def chance_loss(self) -> float | None:
        """The smallest mean loss on the held-out examples of a model with constant outputs.

        For the mean squared error, it is the variance of the targets; for cross-entropy, it is
        the entropy of the class frequencies. It is ``None`` if an example has several classes,
        if the task overrides `batch_loss`, or if the search fails.
        """
        data = self.held_out()
        has_several_classes = (
            data.targets.dim() > 1 and not data.targets.is_floating_point()
        )
        calls_model_itself = type(self).batch_loss is not Task.batch_loss
        if has_several_classes or calls_model_itself:
            return None
        try:
            with models.one_thread():
                loss = self._least_constant_loss(data)
        except Exception:  # noqa: BLE001 (anything that a user's loss may do: the run goes on)
            return None
        if math.isfinite(loss):
            return loss
        return None

    def _least_constant_loss(self, data: ClientData) -> float:
        """The smallest mean loss of one output for all examples, by L-BFGS from zero."""
        model = models.prepared(self.model).eval()
        with torch.no_grad():
            first = data.map(lambda part: part[:2])
            shape = models.call_model(model, first.inputs).shape[1:]
        output = torch.zeros(shape, requires_grad=True)
        search = torch.optim.LBFGS(
            [output], max_iter=100, line_search_fn="strong_wolfe"
        )

        def mean_loss() -> torch.Tensor:
            search.zero_grad()
            outputs = output.expand(len(data), *shape).contiguous()
            result = self.loss(outputs, data.targets)
            mean = result.loss / result.examples
            mean.backward()  # type: ignore[no-untyped-call]
            return mean

        search.step(mean_loss)  # type: ignore[no-untyped-call]
        return mean_loss().item()

    def check_client(self, client_id: int) -> None:
        """Raise ValueError unless ``client_id`` is one of ``0 … num_clients − 1``."""
        if not 0 <= client_id < self.num_clients:
            raise_invalid("client_id", client_id, f"in [0, {self.num_clients})")


def _loss_notes(loss: torch.Tensor) -> list[str]:
    """Refuse a loss that a model cannot learn from, and note a loss that is not finite."""
    if loss.dim():
        raise ValueError(
            f"Expected the loss to be one number, got shape {tuple(loss.shape)}"
        )
    if not loss.requires_grad:
        raise ValueError(
            "Expected the loss to depend on the parameters that are trained"
        )
    if torch.isfinite(loss):
        return []
    return [
        f"The loss of the initial model on two held-out examples is {loss.item()}."
    ]


def _shapes(examples: ClientData) -> str:
    """The name, type and shape of each tensor, for a message."""
    texts = []
    for name, part in examples.tensors().items():
        kind = str(part.dtype).removeprefix("torch.")
        texts.append(f"{name}: {kind} {tuple(part.shape)}")
    return "; ".join(texts)
