"""CONTRIBUTING's recipes, each followed in a copy of the package.

A word that is added to a ``Literal`` alone is an error of the type checker, see `test_literals`.
"""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

Edit = tuple[str, str, str]
"""A file, a text that stands in it once, and what is written in its place.

Without a text the file is new.
"""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """An addition to the package.

    Attributes:
        edits: of the package.
        check: Python that uses the addition.
        beside: edits of tests and documents, for which the tests ask.
        asked_by: the test that fails without ``beside``.
    """

    edits: tuple[Edit, ...]
    check: str
    beside: tuple[Edit, ...] = ()
    asked_by: str = ""


SCHEDULE = """
import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from fl_epe.schedules.contract import Cohort, Rated
from fl_epe.schedules.law import Events, ParticipationLaw


@dataclasses.dataclass(frozen=True)
class EverySecond(Rated):
    kind: ClassVar[str] = "every-second"

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        for chance in self._chances():
            yield np.flatnonzero(rng.random(population) < chance)

    def law(self, population: int) -> ParticipationLaw:
        return dataclasses.replace(
            super().law(population),
            hidden=True,
            adjacency="add-or-remove",
            events=Events.coins(self._chances()),
        )

    def _chances(self) -> np.ndarray:
        turns = np.arange(self.rounds) % 2 == 0
        return np.where(turns, self.rate * self.rounds / turns.sum(), 0.0)
"""
BOUND = """
from fl_epe.auditing.bounds.error_rates import Sample


def zero(sample: Sample) -> float:
    return 0.0
"""
CLIP_RULE = """@dataclasses.dataclass(frozen=True)
class DecayingClip(FixedClip):
    def update(
        self, clip_norm: float, unclipped: float, voted: float, rng: np.random.Generator
    ) -> float:
        return 0.9 * clip_norm


ClipNorm = FixedClip | AdaptiveClip | DecayingClip
"""
LOGGER = """class _Notebook:
    def __init__(self, folder: Path, resumed: bool) -> None:
        self._path = folder / "notebook.txt"

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        self._path.write_text(str(round_number))

    def close(self, summary: Mapping[str, float | str]) -> None:
        pass


class _TensorBoard:
"""
DRAW = "def _draw(rng: np.random.Generator, out: Floats32) -> float:\n"
AXES = """class Axes(Sphere):
    def fill(self, i: int, out: Floats32) -> None:
        out[:] = 0
        out[i % len(out)] = 1


"""

BY_NAME = "fl_epe/schedules/by_name.py"
METHODS = "fl_epe/auditing/bounds/methods.py"
CLIP_NORMS = "fl_epe/mechanism/clip_norms.py"
CONFIG = "fl_epe/config.py"
LOGGERS = "fl_epe/loggers.py"
CANARY_SET = "fl_epe/canaries/canary_set.py"
DETAILS = "fl_epe/reporting/details.py"
EVERY = "tests/support/every_schedule.py"
GUIDE = "docs/guides/scores.md"

RECIPES = {
    "schedule": Recipe(
        edits=(
            ("fl_epe/schedules/every_second.py", "", SCHEDULE),
            (
                BY_NAME,
                "from fl_epe.schedules.trace import",
                "from fl_epe.schedules.every_second import EverySecond\n"
                "from fl_epe.schedules.trace import",
            ),
            (
                BY_NAME,
                "        Trace,\n",
                "        Trace,\n        EverySecond,\n",
            ),
        ),
        check="""
import numpy as np
from fl_epe.schedules import make_schedule
schedule = make_schedule("every-second", rounds=10, participations=2)
sizes = [len(cohort) for cohort in schedule.cohorts(100, np.random.default_rng(1))]
assert sizes[1::2] == [0] * 5 and min(sizes[::2]) > 20
""",
        beside=(
            (
                EVERY,
                "from fl_epe.schedules.sampled import",
                "from fl_epe.schedules.every_second import EverySecond\n"
                "from fl_epe.schedules.sampled import",
            ),
            (EVERY, "    TRACE,\n]", "    EverySecond(T, 0.2),\n    TRACE,\n]"),
        ),
        asked_by="tests/schedules/test_schedule_laws.py::test_every_kind_is_tried",
    ),
    "bound": Recipe(
        edits=(
            ("fl_epe/auditing/bounds/zero.py", "", BOUND),
            (
                METHODS,
                "from fl_epe.auditing.bounds.guessing import",
                "from fl_epe.auditing.bounds.zero import zero\n"
                "from fl_epe.auditing.bounds.guessing import",
            ),
            (
                METHODS,
                '    "weighted": Bound(weighted),\n',
                '    "weighted": Bound(weighted),\n    "zero": Bound(zero),\n',
            ),
        ),
        check="""
from fl_epe import epsilon_lower_bound
assert epsilon_lower_bound([3.0, 4.0], [0.0, 1.0], 1e-3, method="zero") == 0
""",
        beside=(
            (
                GUIDE,
                "| `weighted` |",
                "| `zero` | 0 | yes | nothing |\n| `weighted` |",
            ),
        ),
        asked_by="tests/auditing/test_lower_bounds.py::test_the_guide_has_a_row_for_each_bound",
    ),
    "logger": Recipe(
        edits=(
            (LOGGERS, '"mlflow", "wandb"]', '"mlflow", "wandb", "notebook"]'),
            (
                LOGGERS,
                '        case "mlflow":',
                '        case "notebook":\n            return _Notebook, None\n'
                '        case "mlflow":',
            ),
            (LOGGERS, "class _TensorBoard:\n", LOGGER),
        ),
        check="""
import tempfile
from pathlib import Path
from fl_epe.loggers import Loggers
folder = Path(tempfile.mkdtemp())
loggers = Loggers(["notebook"], folder, warn=print)
loggers.log(3, {"epsilon-all": 1.0}, resumed=False)
assert (folder / "notebook.txt").read_text() == "3"
""",
    ),
    "clip-rule": Recipe(
        edits=(
            (CLIP_NORMS, "ClipNorm = FixedClip | AdaptiveClip\n", CLIP_RULE),
            (
                CONFIG,
                'Literal["adaptive", "fixed"]',
                'Literal["adaptive", "fixed", "decay"]',
            ),
            (
                CONFIG,
                '            case "adaptive":\n                return self._adaptive_clip()',
                '            case "decay":\n'
                "                return clip_norms.DecayingClip(self.clip_norm)\n"
                '            case "adaptive":\n                return self._adaptive_clip()',
            ),
        ),
        check="""
from fl_epe.config import RunConfig
config = RunConfig(
    clients=100, clipping="decay", clip_norm=2.0, noise_multiplier=1.0
)
rule = config.clip_rule()
assert rule.update(rule.init(), 1.0, 1.0, None) == 1.8
""",
    ),
    "canary-kind": Recipe(
        edits=(
            ("fl_epe/canaries/directions.py", DRAW, AXES + DRAW),
            (
                CANARY_SET,
                'Literal["rotation", "sphere"]',
                'Literal["rotation", "sphere", "axes"]',
            ),
            (CANARY_SET, "    Sphere,\n", "    Axes,\n    Sphere,\n"),
            (
                CANARY_SET,
                '            case "sphere":\n                is_sphere = True\n',
                '            case "axes":\n                is_sphere = False\n'
                '            case "sphere":\n                is_sphere = True\n',
            ),
            (
                CANARY_SET,
                "        self._sphere = Sphere(self.dim, self.seed) if is_sphere else None\n",
                "        self._sphere = Sphere(self.dim, self.seed) if is_sphere else None\n"
                '        if kind == "axes":\n'
                "            self._sphere = Axes(self.dim, self.seed)\n",
            ),
        ),
        check="""
from fl_epe import CanarySet
assert CanarySet(4, 2, seed=1, kind="axes").vector(1).tolist() == [0, 1, 0, 0]
""",
    ),
    "row-of-the-report": Recipe(
        edits=(
            (
                DETAILS,
                "    yield from record.findings.noise\n",
                '    yield f"The model has {record.dim:,} parameters."\n'
                "    yield from record.findings.noise\n",
            ),
        ),
        check="""
import numpy as np
from records import make_record
from fl_epe.reporting import summarize
from fl_epe.reporting.details import details
record = make_record()
text = str(details(summarize(record)))
assert f"The model has {record.dim:,} parameters." in text
""",
    ),
}


def followed(edits, place):
    """Makes edits, and returns the files that were there before."""
    changed = set()
    for file, text, replacement in edits:
        path = place / file
        if not text:
            path.write_text(replacement)
            continue
        before = path.read_text()
        assert before.count(text) == 1, (file, text)
        path.write_text(before.replace(text, replacement))
        changed.add(file)
    return changed


def ran(place, *arguments):
    folders = (place, place / "tests" / "support")
    paths = os.pathsep.join(map(str, folders))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_an_addition_takes_two_files_and_what_is_forgotten_is_told(
    name, tmp_path
):
    recipe = RECIPES[name]
    for folder in ("fl_epe", "tests", "docs", "simulations"):
        shutil.copytree(
            ROOT / folder,
            tmp_path / folder,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, tmp_path / file)
    assert len(followed(recipe.edits, tmp_path)) <= 2
    use = ran(tmp_path, "-c", recipe.check)
    assert use.returncode == 0, use.stderr
    if recipe.asked_by:
        test = ("-m", "pytest", "-p", "no:cacheprovider", recipe.asked_by)
        assert ran(tmp_path, *test).returncode == 1
        followed(recipe.beside, tmp_path)
        complete = ran(tmp_path, *test)
        assert complete.returncode == 0, complete.stdout
