"""Which client has which rows."""

from typing import Any

import datasets
import numpy as np
import pytest
from flwr_datasets.partitioner import (
    IidPartitioner,
    InnerDirichletPartitioner,
    LinearPartitioner,
    NaturalIdPartitioner,
    Partitioner,
)
from own_data import net, rows

from fl_epe.tasks import from_datasets
from fl_epe.tasks.partitions import check_partition, client_rows

pytestmark = pytest.mark.filterwarnings("ignore:Partition sizes do not match")


def _numbered(data: datasets.Dataset) -> datasets.Dataset:
    return data.add_column("row", np.arange(len(data)))


def _theirs(
    partitioner: Partitioner, data: datasets.Dataset
) -> list[list[int]]:
    """The rows by flwr-datasets alone."""
    partitioner.dataset = data
    parts = [
        partitioner.load_partition(i)["row"]
        for i in range(partitioner.num_partitions)
    ]
    return [sorted(part) for part in parts]


def _ours(
    data: datasets.Dataset, partition: Any, **more: Any
) -> list[list[int]]:
    found = client_rows(data, partition, targets="y", **more)
    assert all(part.dtype == np.int64 for part in found)
    return [part.tolist() for part in found]


@pytest.mark.parametrize("column", ["user", "word"])
def test_by_a_column_is_a_natural_id_partitioner(column: str):
    data = rows(47)
    found = _ours(data, f"by:{column}")
    assert found == _theirs(
        NaturalIdPartitioner(partition_by=column), _numbered(data)
    )
    # Clients stand in the order of the values.
    assert [data[part[0]][column] for part in found] == sorted(
        set(data[column])
    )


def test_iid_is_an_iid_partitioner_of_shuffled_rows():
    data = rows(47)
    theirs = _theirs(
        IidPartitioner(num_partitions=5), _numbered(data).shuffle(seed=0)
    )
    assert _ours(data, "iid:5") == theirs
    assert sorted(map(len, theirs)) == [9, 9, 9, 10, 10]


@pytest.mark.parametrize("alpha", [30.0, 0.3, 0.05])
def test_dirichlet_is_an_inner_dirichlet_partitioner_with_equal_sizes(
    alpha: float,
):
    data = rows(47)
    classes = np.array(data["y"])
    numbered = _numbered(data).add_column("class", classes).shuffle(seed=0)
    theirs = InnerDirichletPartitioner(
        partition_sizes=[10, 10, 9, 9, 9],
        partition_by="class",
        alpha=alpha,
        seed=0,
    )
    assert _ours(data, f"dirichlet:{alpha}", num_clients=5) == _theirs(
        theirs, numbered
    )


@pytest.mark.parametrize("alpha", ["0.03", "0.01", "1e-6", "1e-300"])
def test_an_alpha_whose_shares_are_too_small_for_floating_point_gives_clients_of_one_class(
    alpha: str,
):
    """Or of a few, one after another as they run out."""
    data = datasets.Dataset.from_dict({"y": [i % 10 for i in range(2000)]})
    found = _ours(data, f"dirichlet:{alpha}", num_clients=40)
    assert sorted(row for part in found for row in part) == list(range(2000))
    assert {len(part) for part in found} == {50}
    labels = np.array(data["y"])
    most = [np.bincount(labels[part]).max() for part in found]
    assert np.median(most) > 25  # of 50; with equal shares it would be 9


def test_a_partitioner_is_used_for_two_data_sets_and_stays_as_it_was():
    partitioner = LinearPartitioner(num_partitions=4)
    first, second = _ours(rows(40), partitioner), _ours(rows(60), partitioner)
    assert first == _theirs(
        LinearPartitioner(num_partitions=4), _numbered(rows(40))
    )
    assert second == _theirs(
        LinearPartitioner(num_partitions=4), _numbered(rows(60))
    )
    assert not partitioner.is_dataset_assigned()


CASES = {
    "by": ("by:user", {}),
    "iid": ("iid:7", {}),
    "dirichlet": ("dirichlet:0.1", {"num_clients": 7}),
    "object": (LinearPartitioner(num_partitions=7), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_row_belongs_to_exactly_one_client(case: str):
    partition, more = CASES[case]
    data = rows(60)
    found = _ours(data, partition, **more)
    assert sorted(row for part in found for row in part) == list(range(60))
    assert found == _ours(data, partition, **more)
    assert all(part == sorted(part) for part in found)


def test_label_shares_have_the_spread_of_a_dirichlet_law():
    clients, size, alpha, classes = 100, 50, 0.5, 4
    data = datasets.Dataset.from_dict(
        {"y": [i % classes for i in range(clients * size)]}
    )
    found = client_rows(
        data, f"dirichlet:{alpha}", targets="y", num_clients=clients
    )
    assert {len(part) for part in found} == {size}
    labels = np.array(data["y"])
    # The last clients take what is left over: those before them have the law.
    shares = np.array(
        [
            np.bincount(labels[part], minlength=classes) / size
            for part in found[: clients // 2]
        ]
    )
    # A share ~ Beta(α, 3α) of variance p(1−p)/(4α+1), and a binomial draw of `size` on top.
    p, total = 1 / classes, classes * alpha
    spread = p * (1 - p) * (1 / (total + 1) + (1 - 1 / (total + 1)) / size)
    squares = (shares - p) ** 2
    error = squares.mean(1).std() / np.sqrt(len(squares))
    assert abs(squares.mean() - spread) < 4 * error


def test_numbers_as_classes_may_have_gaps_and_text_may_be_classes():
    data = rows(60)
    by_word = _ours(data, "dirichlet:0.3", num_clients=4)
    gaps = data.remove_columns("y").add_column("y", np.array(data["y"]) * 7 - 3)
    assert by_word == _ours(gaps, "dirichlet:0.3", num_clients=4)
    words = data.remove_columns("y").add_column(
        "y", [f"{label}" for label in data["y"]]
    )
    assert by_word == _ours(words, "dirichlet:0.3", num_clients=4)


@pytest.mark.parametrize(
    ("partition", "num_clients", "message"),
    [
        pytest.param(
            "user", None, "partition='user' to be 'by:COLUMN'", id="no-kind"
        ),
        pytest.param(
            "by:", None, "partition='by:' to be 'by:COLUMN'", id="no-column"
        ),
        pytest.param(
            "shards:3",
            None,
            "partition='shards:3' to be 'by:COLUMN'",
            id="other-kind",
        ),
        pytest.param("iid:x", None, "partition='iid:x' to be", id="iid-text"),
        pytest.param("iid:0", None, "partition='iid:0' to be", id="iid-none"),
        pytest.param(
            "iid:-2", None, "partition='iid:-2' to be", id="iid-negative"
        ),
        pytest.param(
            "iid:3",
            3,
            "num_clients=3 only with 'dirichlet:ALPHA'",
            id="iid-twice",
        ),
        pytest.param(
            "dirichlet:0.3", None, "num_clients=None >= 1", id="dirichlet-alone"
        ),
        pytest.param(
            "dirichlet:0", 3, "partition='dirichlet:0' to be 'by", id="alpha-0"
        ),
        pytest.param(
            "dirichlet:nan", 3, "(ALPHA > 0) with num_clients", id="alpha-nan"
        ),
        pytest.param(
            "dirichlet:x", 3, "(ALPHA > 0) with num_clients", id="alpha-text"
        ),
        pytest.param(7, None, "partition=7 to be 'by:COLUMN'", id="a-number"),
        pytest.param(LinearPartitioner(2), 2, "only with", id="object-twice"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    partition: Any, num_clients: Any, message: str
):
    with pytest.raises(ValueError) as caught:
        check_partition(partition, num_clients)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("partition", "num_clients", "message"),
    [
        pytest.param(
            "by:nobody",
            None,
            "no column 'nobody' among x, y, user",
            id="no-column",
        ),
        pytest.param(
            "iid:70", None, "there are 60 rows for 70 clients", id="iid-many"
        ),
        pytest.param(
            "dirichlet:1", 70, "60 rows for 70 clients", id="dirichlet-many"
        ),
    ],
)
def test_what_the_rows_cannot_give_is_refused(
    partition: str, num_clients: Any, message: str
):
    with pytest.raises(
        ValueError,
        match=f"partition='{partition}' to fit the rows: .*{message}",
    ):
        client_rows(rows(60), partition, targets="y", num_clients=num_clients)


@pytest.mark.parametrize(
    "missing", [None, "", " "], ids=["none", "empty", "space"]
)
def test_a_row_of_nobody_is_refused(missing: Any):
    data = datasets.Dataset.from_dict(
        {"y": [0, 1, 0], "user": ["1", missing, "2"]}
    )
    with pytest.raises(
        ValueError,
        match="partition='by:user' to fit the rows: 1 of 3 rows have no value there",
    ):
        client_rows(data, "by:user", targets="y")


def test_a_task_names_as_many_clients_as_its_partition_has():
    task = from_datasets(
        net,
        rows(60),
        inputs="x",
        targets="y",
        partition="by:user",
        held_out=0.2,
    )
    assert task.num_clients == 10
    sizes = task.sizes(np.arange(10))
    assert sizes.tolist() == [len(task.client(i)) for i in range(10)]
    assert sizes.sum() == 48
