"""A result in its three forms: what is worst stands first."""

from fl_epe.conformance import ConformanceResult
from fl_epe.noise import Check

WORST = Check(
    "seed",
    "failed",
    "a claim",
    "a < b",
    "No noise",
    "critical",
    "again",
    infinite=True,
)
OTHERS = (
    Check("scale", "passed", "a claim", "all of it"),
    Check("grid", "unknown", "a claim", "nothing", "Too few"),
    Check(
        "tails",
        "failed",
        "a claim",
        "short ones",
        "Less hides less",
        "theoretical",
        "again",
    ),
)


def test_the_worst_failure_is_first_in_every_form():
    found = ConformanceResult(
        "a:b", 1.0, 1e-5, [*OTHERS, WORST], 5.0, 100, "Gaussian", False
    )
    assert found.summary.startswith("2 of 4 checks failed (worst: critical)")
    for text in (found.table(), found.as_html()):
        body = text[text.rindex(found.summary) :]
        places = [
            body.index(name) for name in ("seed", "tails", "grid", "scale")
        ]
        assert places == sorted(places)
        assert text.count("Again: again") == 1
    assert "a &lt; b. No noise" in found.as_html()
    assert found.as_json()["checks"][-1]["infinite"] is True
