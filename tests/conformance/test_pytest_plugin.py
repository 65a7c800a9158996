"""The plugin of pytest, in a pytest of its own."""

import subprocess
import sys
import textwrap

import pytest

TESTS = """
    import numpy as np
    import pytest

    def noisy(scale):
        def release(updates, rng):
            norms = np.linalg.norm(updates, axis=1, keepdims=True)
            total = (updates / np.maximum(norms, 1.0)).sum(axis=0)
            return total + rng.normal(0, scale, total.size)
        return release

    @pytest.mark.dp(noise_multiplier=1.0, delta=1e-5, noise="gaussian", adversary="every")
    def test_right(dp_conformance):
        assert dp_conformance(noisy(1.0), inputs="finite", trials=100).passed

    @pytest.mark.dp(epsilon=0.5, delta=1e-5)
    def test_broken(dp_conformance):
        dp_conformance(noisy(0.1), inputs="finite", trials=100)
"""


@pytest.mark.slow
def test_marker_and_fixture(tmp_path):
    (tmp_path / "test_mechanism.py").write_text(textwrap.dedent(TESTS))
    plugin = ["-p", "no:cacheprovider"]  # pytest finds it by its entry point
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--strict-markers",
            *plugin,
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "Claim: ε = 0.5 at δ = 1e-05." in done.stdout
    assert "Again: conform(target, trials=100" in done.stdout


def test_importing_the_plugin_is_light():
    code = (
        "import sys, fl_epe.conformance.pytest_plugin\n"
        "print([m for m in ('numpy', 'scipy', 'torch', 'flwr', 'rich') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
