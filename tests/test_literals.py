"""A word that is added to a ``Literal`` alone is an error of the type checker, and at run time."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fl_epe
from fl_epe import CanarySet
from fl_epe.auditing import EVERY_ROUND, Adversary
from fl_epe.config import RunConfig
from fl_epe.conformance.games import world
from fl_epe.conformance.target import Target
from fl_epe.data.encoders import encoder_of
from fl_epe.flower.layout import Layout
from fl_epe.flower.replies import base_of
from fl_epe.messages import pack
from fl_epe.noise import check_noise

ROOM = Path(fl_epe.__file__).parent

# The new word of each Literal, whose own words are what stands before it.
WIDENED = {
    "config.py": {
        '"ladder", "paper"': "spiral",
        '"fixed", "coin"': "dice",
        '"adaptive", "fixed"': "decay",
        '"sgd", "adam"': "lion",
    },
    "canaries/canary_set.py": {'"rotation", "sphere"': "cube"},
    "loggers.py": {'"tensorboard", "mlflow", "wandb"': "papyrus"},
    "simulation/run.py": {'"in-process", "ray"': "carrier-pigeon"},
    "auditing/estimate/adversary.py": {'"final", "all"': "first"},
    "auditing/claims/evidence.py": {
        '"violated", "faulty", "not judged", "undecided", "not violated"': "postponed"
    },
    "conformance/games.py": {
        '"add-or-remove", "zero-out", "substitute"': "shuffle"
    },
    "noise/laws.py": {'"gaussian", "laplace"': "cauchy"},
    "conformance/target.py": {
        '"l1", "l2", "linf"': "l3",
        '"any", "finite", "clipped"': "sorted",
        '"every", "last"': "median",
        '"gaussian", "laplace"': "uniform",
    },
    "data/examples.py": {'"emnist", "stackoverflow"': "celeba"},
    "flower/state.py": {'"auto", "replace", "none"': "share"},
    "flower/layout.py": {'"model", "update"': "gradient"},
}
# Their types decide nothing here, and take a minute.
NOT_FOLLOWED = (
    "numpy",
    "scipy",
    "torch",
    "flwr",
    "pydantic",
    "ray",
    "dp_accounting",
)


def without(config: RunConfig, **values: str) -> RunConfig:
    """A config with words that its own checks have not seen."""
    for name, value in values.items():
        object.__setattr__(config, name, value)
    return config


@pytest.mark.weekly
def test_the_type_checker_names_every_word_that_nobody_decides(tmp_path):
    copy = tmp_path / "fl_epe"
    shutil.copytree(ROOM, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, words in WIDENED.items():
        path = copy / name
        source = path.read_text("utf-8")
        for known, new in words.items():
            written = r",\s*".join(map(re.escape, known.split(", ")))
            source, count = re.subn(
                rf"Literal\[\s*{written},?\s*\]",
                f'Literal[{known}, "{new}"]',
                source,
                count=1,
            )
            assert count == 1, (name, known)
        path.write_text(source, "utf-8")
    sections = [
        f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in NOT_FOLLOWED
    ]
    config = tmp_path / "mypy.ini"
    config.write_text(
        "\n".join(["[mypy]\nignore_missing_imports = True\n", *sections])
    )
    paths = [
        str(copy / name)
        for name in (*WIDENED, "flower/replies.py", "data/encoders.py")
    ]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(config), *paths],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    undecided = set(
        re.findall(
            r"\"assert_never\" has .* \"Literal\['([\w-]+)'\]\"", done.stdout
        )
    )
    wanted = {new for words in WIDENED.values() for new in words.values()}
    assert undecided == wanted, done.stdout[-4000:] + done.stderr[-1000:]


SMALL = {"clients": 48, "rounds": 6, "clients_per_round": 4, "num_canaries": 4}
ARRAYS = pack(weights=np.ones(3))
AT_RUN_TIME: dict[str, Callable[[], object]] = {
    "clipping": lambda: without(
        RunConfig(**SMALL), clipping="decay"
    ).clip_rule(),
    "server_optimizer": lambda: without(
        RunConfig(**SMALL), server_optimizer="lion"
    ).optimizer(),
    "canary_design": lambda: (
        without(RunConfig(**SMALL), canary_design="spiral").on_ladder
    ),
    "inclusion": lambda: without(RunConfig(**SMALL), inclusion="dice").by_coin,
    "canary_kind": lambda: CanarySet(8, 2, 1, "cube"),
    "sees": lambda: Adversary("first"),
    "adjacency": lambda: world(False, "shuffle", EVERY_ROUND, []),
    "data": lambda: encoder_of("celeba", "", None),
    "distribution": lambda: check_noise([1.0, 2.0], 1.0, distribution="cauchy"),
    "norm": lambda: Target(len, epsilon=1.0, norm="l3"),
    "inputs": lambda: Target(len, epsilon=1.0, inputs="sorted"),
    "adversary": lambda: Target(len, epsilon=1.0, adversary="median"),
    "noise": lambda: Target(len, epsilon=1.0, noise="uniform"),
    "form": lambda: Layout.of(ARRAYS).form(ARRAYS, ARRAYS, "gradient"),
    "replies": lambda: base_of("gradient", ARRAYS),
}


@pytest.mark.parametrize("name", AT_RUN_TIME)
def test_an_unknown_word_is_an_error_at_run_time(name):
    with pytest.raises((AssertionError, ValueError)):
        AT_RUN_TIME[name]()
