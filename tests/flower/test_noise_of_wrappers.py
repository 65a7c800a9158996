"""The noise of Flower's DP wrappers is seen apart from the updates, and checked."""

import re

import numpy as np
import pytest
from flower_audits import DELTA, PLAIN, REPLIES, fixed, run_until
from flower_clients import model
from flwr.app import Array, ArrayRecord
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import dp_fixed_clipping
from flwr.supercore.differential_privacy import add_gaussian_noise_inplace

from fl_epe.reporting import summarize

SEED = 314159265  # not one of those that are tried
adaptive = flower.DifferentialPrivacyServerSideAdaptiveClipping


class Smoothed(flower.DifferentialPrivacyServerSideFixedClipping):
    """Releases half of a noisy model: what is left is no noise that anybody could tell."""

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        return ArrayRecord(
            {name: Array(a.numpy() / 2) for name, a in arrays.items()}
        ), metrics


def audited(strategy, arrays=None, rounds=8, **settings):
    """The audit after a run, or after ``kill`` rounds, and the last model."""
    settings = {
        "num_canaries": 30,
        "seed": 1,
        "delta": DELTA,
        "max_share": 1,
        **settings,
    }
    np.random.seed(SEED)  # noqa: NPY002 - Flower's DP noise is the global generator's
    audit, models = run_until(strategy, arrays or model(), rounds, **settings)
    return audit, models[-1]


def noise(scale=1.0, same=False):
    """Stands in for Flower's function that adds noise."""

    def changed(arrays, deviation):
        if same:
            np.random.seed(SEED)  # noqa: NPY002
        add_gaussian_noise_inplace(arrays, deviation * scale)

    return changed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({}, None, id="right"),
        pytest.param({"scale": 0.9}, r"\(scale\): 0\.(89|90)", id="less"),
        pytest.param({"scale": 1.5}, None, id="more"),
        pytest.param(
            {"same": True},
            r"rounds \d and \d have the same noise",
            id="repeated",
        ),
    ],
)
def test_noise_as_it_is(change, words, monkeypatch):
    monkeypatch.setattr(
        dp_fixed_clipping, "add_gaussian_noise_inplace", noise(**change)
    )
    noise_findings = audited(fixed())[0].record().findings
    assert (
        noise_findings.noise[0] == f"Noise: {'not ' * bool(words)}as claimed."
    )
    if words is None:
        assert noise_findings.mechanism_faults == ()
    else:
        (fault,) = noise_findings.mechanism_faults
        assert re.search(words, fault)


@pytest.mark.slow
def test_the_next_clip_norm_scales_too_little_noise():
    """Flower (1.42) moves an adaptive clip norm before it adds the noise of a round."""
    strategy = adaptive(
        flower.FedAvg(**PLAIN), 1.0, REPLIES, initial_clipping_norm=0.01
    )
    summary = summarize(audited(strategy)[0].record())
    assert summary.status == "faulty"
    assert "noise is not as claimed (scale)" in summary.warnings[0].text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        pytest.param(lambda: flower.FedAvg(**PLAIN), "only sums", id="plain"),
        pytest.param(
            lambda: Smoothed(flower.FedAvg(**PLAIN), 1.0, 0.1, REPLIES),
            "only sums",
            id="subclass",
        ),
        pytest.param(
            lambda: fixed(z=1e-4), "hardly larger than the rounding", id="tiny"
        ),
    ],
)
def test_where_it_cannot_be_told(strategy, reason):
    noise_findings = audited(strategy(), rounds=3)[0].record().findings
    assert noise_findings.mechanism_faults == ()
    assert noise_findings.noise[0].startswith("Noise: cannot be told")
    assert reason in noise_findings.noise[0]


@pytest.mark.slow
def test_noise_that_repeats_after_a_restart(tmp_path):
    _, last = audited(fixed(), kill=4, checkpoint=tmp_path)
    audit, _ = audited(fixed(), last, rounds=4, checkpoint=tmp_path)
    findings = audit.record().findings
    assert findings.resumed_after == (4,)
    same = re.search(
        r"rounds (\d) and (\d) have the same noise",
        findings.mechanism_faults[0],
    )
    assert same is not None
    assert int(same[2]) == int(same[1]) + 4
