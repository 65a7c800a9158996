"""Every function of the plug-in fails once, one at a time: the run ends, the report says so."""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fake_silos import FakeSilos
from flower_clients import drifting_app, model
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import (
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp import strategy as flower

import fl_epe.flower
import fl_epe.messages
from fl_epe.flower import CanaryAudit, InProcessGrid, RecordAudit, canary_mod

NODES, ROUNDS = 6, 2
PLAIN = {
    "fraction_evaluate": 0.0,
    "min_train_nodes": 2,
    "min_available_nodes": NODES,
}
SHAPES = {"weight": (8, 5), "bias": (5,)}
MODULES = [
    importlib.import_module(info.name)
    for room in (fl_epe.flower, fl_epe.messages)
    for info in pkgutil.iter_modules(room.__path__, f"{room.__name__}.")
]


class InjectedError(RuntimeError):
    """What a function raises that is made to fail."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A function of the plug-in: an attribute of a module or of a class in it."""

    owner: Any
    name: str

    @property
    def label(self) -> str:
        where = getattr(self.owner, "__qualname__", self.owner.__name__)
        return f"{where.rpartition('.')[2]}.{self.name}"

    def replace(
        self, monkeypatch: pytest.MonkeyPatch, around: Callable[..., Any]
    ) -> None:
        """Put ``around(function)`` in the function's place, wherever it is known."""
        original = inspect.getattr_static(self.owner, self.name)
        if inspect.ismodule(self.owner):
            new = around(original)
            for module in MODULES:
                for name, value in list(vars(module).items()):
                    if value is original:
                        monkeypatch.setattr(module, name, new)
        elif isinstance(original, (staticmethod, classmethod)):
            monkeypatch.setattr(
                self.owner, self.name, type(original)(around(original.__func__))
            )
        elif isinstance(original, property):
            monkeypatch.setattr(
                self.owner, self.name, property(around(original.fget))
            )
        elif isinstance(original, functools.cached_property):
            cached = functools.cached_property(around(original.func))
            cached.__set_name__(self.owner, self.name)
            monkeypatch.setattr(self.owner, self.name, cached)
        else:
            monkeypatch.setattr(self.owner, self.name, around(original))


def _is_function(value: object) -> bool:
    kinds = (staticmethod, classmethod, property, functools.cached_property)
    return inspect.isfunction(value) or isinstance(value, kinds)


def places() -> Iterator[Place]:
    for module in MODULES:
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != module.__name__:
                continue
            if inspect.isfunction(value):
                yield Place(module, name)
            elif inspect.isclass(value):
                members = vars(value).items()
                yield from (
                    Place(value, inner)
                    for inner, member in members
                    if _is_function(member) and (not inner.startswith("__"))
                )


class Own(flower.FedAvg):
    """Averages in a function of its own, which calls the usual one, in a loop of its own."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return super().aggregate_train(server_round, replies)

    def start(self, *arguments: Any, **named: Any) -> flower.Result:
        return super().start(*arguments, **named)


def accounted() -> flower.Strategy:
    config = PrivacyConfig(
        1e-3,
        NODES,
        NeighboringRelation.ADD_OR_REMOVE_ONE,
        SamplingMethod.NO_AMPLIFICATION,
    )
    return flower.DifferentialPrivacyServerSideFixedClipping(
        flower.FedAvg(**PLAIN),
        0.5,
        0.1,
        NODES,
        accountant=RdpAccountant(config),
    )


def by_clients() -> flower.Strategy:
    return flower.DifferentialPrivacyClientSideFixedClipping(
        flower.FedAvg(**PLAIN), 0.5, 0.1, NODES
    )


def around_own() -> flower.Strategy:
    return flower.DifferentialPrivacyServerSideAdaptiveClipping(
        Own(**PLAIN), 0.5, NODES + 2
    )


@dataclasses.dataclass(frozen=True)
class Case:
    strategy: Callable[[], flower.Strategy]
    app: Callable[[], ClientApp] = drifting_app
    arrays: Callable[[], ArrayRecord] = lambda: model(SHAPES)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    resumed: bool = False
    nodes: int = NODES


class KilledError(Exception):
    """What ends a server app in its first round."""


def momentum() -> flower.Strategy:
    return flower.FedAvgM(**PLAIN, server_momentum=0.5)


@functools.cache
def killed() -> tuple[tempfile.TemporaryDirectory[str], ArrayRecord]:
    """The checkpoint that a run left behind that was killed after a round, and its model."""
    folder = tempfile.TemporaryDirectory()
    keywords = {"num_canaries": 4, "delta": 1e-3, "seed": 1, "max_share": 0.5}
    audit = CanaryAudit(momentum(), checkpoint=folder.name, **keywords)
    models = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        models.append(arrays)
        if server_round:
            raise KilledError

    with (
        InProcessGrid(drifting_app(), NODES) as grid,
        contextlib.suppress(KilledError),
    ):
        audit.start(
            grid, model(SHAPES), num_rounds=ROUNDS, evaluate_fn=evaluate
        )
    return folder, models[-1]


CASES = {
    "own-loop": Case(lambda: Own(**PLAIN)),
    "accounted": Case(accounted),
    "clients": Case(
        by_clients,
        lambda: drifting_app([fixedclipping_mod, canary_mod]),
        settings={"clients": 0.4},
    ),
    "wrapped": Case(around_own),
    "resumed": Case(momentum, arrays=lambda: killed()[1], resumed=True),
    "records": Case(
        lambda: Own(**PLAIN | {"min_available_nodes": 3}),
        FakeSilos().app,
        nodes=3,
    ),
}


def make_audit(
    case: Case, settings: dict[str, Any], folder: str
) -> CanaryAudit | RecordAudit:
    if case is CASES["records"]:
        return RecordAudit(
            case.strategy(), 1e-5, folder=folder, log_to=[Quiet()]
        )
    return CanaryAudit(case.strategy(), **settings)


class Quiet:
    """A logger that keeps nothing."""

    def log(self, round_number: int, values: object) -> None: ...

    def close(self, summary: object) -> None: ...


def audited(
    case: Case, patch: Callable[[], None]
) -> tuple[CanaryAudit | RecordAudit, flower.Result]:
    """A whole run whose audit is set up, then patched, then started."""
    with contextlib.ExitStack() as stack:
        settings: dict[str, Any] = {
            "num_canaries": 4,
            "delta": 1e-3,
            "seed": 1,
            **case.settings,
        }
        settings["max_share"] = 0.5
        if case.resumed:
            settings["checkpoint"] = stack.enter_context(
                tempfile.TemporaryDirectory()
            )
            shutil.copytree(
                killed()[0].name, settings["checkpoint"], dirs_exist_ok=True
            )
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        audit = make_audit(case, settings, folder)
        patch()
        np.random.seed(0)  # noqa: NPY002 - Flower's DP noise is the global generator's
        grid = stack.enter_context(InProcessGrid(case.app(), case.nodes))
        return audit, audit.start(grid, case.arrays(), num_rounds=ROUNDS)


def called_in(case: Case, monkeypatch: pytest.MonkeyPatch) -> list[Place]:
    """The functions of the plug-in that a run and its report call, once it is set up."""
    called: set[Place] = set()

    def noting(place: Place) -> Callable[..., Any]:
        def around(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def call(*arguments: Any, **named: Any) -> Any:
                called.add(place)
                return function(*arguments, **named)

            return call

        return around

    def patch() -> None:
        for place in places():
            place.replace(patched, noting(place))

    with monkeypatch.context() as patched:
        audit, _ = audited(case, patch)
        audit.report()
    return sorted(called, key=lambda place: place.label)


def failing_once(calls: list[int]) -> Callable[..., Any]:
    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            calls.append(1)
            if len(calls) == 1:
                raise InjectedError("injected")
            return function(*arguments, **named)

        return call

    return around


MARKS = {"clients": (), "records": (), "wrapped": pytest.mark.slow}
# What a user calls to run a deployment, or what reads the user's own arguments, is not inside.
# `noting_failure` is what keeps faults from the run.
ENTRY = {
    "AuditedStrategy.start",
    "CanaryAudit._start_audited",
    "CanaryAudit.report",
    "run_report.report",
    "AuditedRun.noting_failure",
}
ENTRY |= {"AuditedStrategy._start_hooked", "AuditedStrategy._noting_failure"}
ENTRY |= {
    "RecordAudit._start_audited",
    "RecordAudit.report",
    "RecordAudit.faults",
}
OUTSIDE = {
    # What the grid and the app of this case call before the audit does.
    "records": {"DecodedArray.numpy", "arrays.read_only"},
    # It is called after the strategy has failed on canaries: a second failure at once.
    "accounted": {"Undo.restore"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=MARKS.get(name, pytest.mark.weekly))
        for name in CASES
    ],
)
def test_whatever_fails_the_run_ends_and_the_report_says_so(name, monkeypatch):
    case = CASES[name]
    failures = []
    left_out = ENTRY | OUTSIDE.get(name, set())
    tried = [
        place
        for place in called_in(case, monkeypatch)
        if place.label not in left_out
    ]
    assert len(tried) > 20
    for place in tried:
        calls: list[int] = []
        with monkeypatch.context() as patched:
            around = failing_once(calls)
            try:
                audit, result = audited(
                    case, functools.partial(place.replace, patched, around)
                )
                shown = list(audit.faults)
                if not any("injected" in line for line in shown):
                    shown = audit.report().splitlines()
            except Exception as error:  # noqa: BLE001 - all failures are shown together
                failures.append(
                    f"{place.label}: {type(error).__name__}: {error}"
                )
                continue
        if not result.arrays:
            failures.append(f"{place.label}: no model")
        if not any("injected" in line for line in shown):
            failures.append(f"{place.label}: not in the report")
    assert not failures, "\n".join(failures)
