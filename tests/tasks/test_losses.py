"""The default losses: which axis of a model's outputs has the classes."""

import pytest
import torch
from torch.nn import functional

from fl_epe.tasks.losses import default_by_example

N, LENGTH, CLASSES = 5, 7, 4
LAST = torch.randn(
    N, LENGTH, CLASSES, generator=torch.Generator().manual_seed(0)
)
TARGETS = torch.randint(
    0, CLASSES, (N, LENGTH), generator=torch.Generator().manual_seed(1)
)
TARGETS[0, 0] = -100


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        pytest.param(LAST, TARGETS, id="last"),
        pytest.param(LAST.movedim(-1, 1), TARGETS, id="second-as-torch"),
        pytest.param(LAST.flatten(0, 1), TARGETS, id="flat"),
        pytest.param(LAST[:, :, None], TARGETS, id="an-axis-of-one"),
        pytest.param(
            LAST[:, None].movedim(-1, 1), TARGETS[:, None], id="pictures"
        ),
        pytest.param(LAST.flatten(0, 1), TARGETS.reshape(-1, 1), id="column"),
    ],
)
def test_the_axis_of_the_classes_is_found(
    outputs: torch.Tensor, targets: torch.Tensor
):
    loss, correct, examples = (
        part.sum().item() for part in default_by_example(outputs, targets)
    )
    summed = functional.cross_entropy(
        LAST.movedim(-1, 1), TARGETS, reduction="sum"
    )
    assert loss == pytest.approx(summed.item(), rel=1e-5)
    assert examples == N * LENGTH - 1
    right = int((LAST.argmax(-1) == TARGETS).sum())
    assert (
        correct
        == default_by_example(outputs.double(), targets)[1].sum()
        == right
    )


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        pytest.param(
            (N, LENGTH, LENGTH),
            "may be the last or the second. Pad",
            id="either",
        ),
        pytest.param(
            (LENGTH, N, CLASSES), r"\(n, classes, …\) for targets", id="swapped"
        ),
        pytest.param(
            (N, LENGTH + 1, CLASSES),
            r"\(n, classes, …\) for targets",
            id="longer",
        ),
        pytest.param(
            (N, CLASSES), r"\(n, classes, …\) for targets", id="one-per-row"
        ),
    ],
)
def test_outputs_that_do_not_tell_are_refused(
    shape: tuple[int, ...], message: str
):
    with pytest.raises(ValueError, match=message):
        default_by_example(torch.zeros(shape), TARGETS)


def test_real_targets_in_another_order_are_refused():
    targets = torch.rand(N, LENGTH, CLASSES)
    assert not default_by_example(targets.flatten(1), targets)[0].any()
    assert not default_by_example(targets[:, None], targets)[0].any()
    with pytest.raises(ValueError, match="in the same order"):
        default_by_example(targets.movedim(-1, 1), targets)
