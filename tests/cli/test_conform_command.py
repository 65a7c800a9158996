"""``fl-epe conform``."""

import json
import textwrap

import pytest

from fl_epe.cli import main

MECHANISMS = """
    import numpy as np
    from fl_epe.conformance import Target

    def coin(bit, rng):
        return int(bit[0, 0] > 0) if rng.random() < 0.9 else int(bit[0, 0] <= 0)

    told = Target(
        coin, epsilon=2.2, norm="linf", inputs="clipped", nonnegative=True,
        adjacency="zero-out", arrays=(1,), categories=True, others=(), trials=400,
    )

    def total(updates, rng):
        norms = np.linalg.norm(updates, axis=1, keepdims=True)
        clipped = (updates / np.maximum(norms, 1.0)).sum(axis=0)
        return clipped + rng.normal(0, 1.0, clipped.size)

    nothing = 5
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module with mechanisms, which is found from the current folder."""
    name = f"mechanisms_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MECHANISMS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_target_passes_and_a_smaller_claim_of_it_fails(module, capsys):
    assert main(["conform", f"{module}:told"]) == 0
    assert "Nothing found" in capsys.readouterr().out
    assert main(["conform", f"{module}:told", "--epsilon", "1"]) == 3
    printed = capsys.readouterr().out
    assert f"Again: fl-epe conform {module}:told --epsilon 1" in printed


def test_a_function_with_its_claim_as_options_json_and_a_page(
    module, capsys, tmp_path
):
    words = [
        "--noise-multiplier",
        "1",
        "--delta",
        "1e-5",
        "--inputs",
        "finite",
        "--trials",
        "100",
    ]
    page = tmp_path / "page.html"
    assert (
        main(
            [
                "conform",
                f"{module}:total",
                *words,
                "--json",
                "--html",
                str(page),
            ]
        )
        == 0
    )
    values = json.loads(capsys.readouterr().out)
    assert values["passed"] is True
    assert values["claimed"] == pytest.approx(4.377, abs=1e-3)
    assert "Conformance of" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["absent", "nothing"])
def test_what_is_no_target_is_bad_input(module, name, capsys):
    assert main(["conform", f"{module}:{name}", "--epsilon", "1"]) == 2
    assert capsys.readouterr().err.startswith("fl-epe: error: ")


def test_a_claim_is_needed(module, capsys):
    assert main(["conform", f"{module}:total"]) == 2
    assert "--epsilon" in capsys.readouterr().err
