"""The report of silos, of a federation or of one silo: its sentences, table, page and JSON."""

import dataclasses
import html
import json
import math
import re

import jsonschema
import pytest
from fake_silos import answer, lines
from schemas import shipped_schema

from fl_epe.auditing import (
    SEEN_OF_SILOS,
    SiloLine,
    Undecided,
    assert_silos_private,
)
from fl_epe.reporting import silo_metrics, silos_text, write_silos_report
from fl_epe.reporting.silos import READING, silos_json

THREE = (
    answer("north"),
    answer("south", epsilon=4.0),
    answer("west", epsilon=3.0),
)
UNMEASURED = SiloLine(
    "partner", theory=3.0, reason="the optimizer is Adam locally"
)
PROVED = SiloLine("server", 5.0, 4.0, 6.0, proved=3.5, theory=3.0)


def words(text):
    return " ".join(text.split())


@pytest.fixture(scope="module")
def schema():
    return shipped_schema("silos")


def test_first_is_the_silo_with_the_largest_epsilon_for_each_adversary():
    theory, *sentences = silos_json(THREE)["answer"]
    assert theory == (
        "Theory: ε of one record at δ = 1e-05 is at most 10.0 (in north), if clipping, sampling"
        " and noise are as claimed."
    )
    assert sentences[0] == (
        "The server, who sees the silo's upload of each round, learns of one record at δ = 1e-05:"
        " most in south, ε ≈ 4.00 (3.20 – 4.80)."
    )
    assert len(sentences) == len(SEEN_OF_SILOS)
    for sentence, seen in zip(sentences, SEEN_OF_SILOS.values(), strict=True):
        assert (
            f"who sees {seen}, learns of one record at δ = 1e-05: most in south, ε"
            in sentence
        )
    assert words(silos_text(THREE)).startswith(f"{theory} {sentences[0]}")


def test_a_silo_s_own_answer_is_not_compared():
    assert silos_json([answer("north")])["answer"][1].endswith(
        "learns of one record at δ = 1e-05: in north, ε ≈ 2.00 (1.60 – 2.40)."
    )


def test_a_silo_without_a_name_speaks_of_itself(tmp_path):
    write_silos_report([answer("")], (), tmp_path)
    assert "in this silo, ε ≈ 2.00" in (tmp_path / "report.html").read_text()
    assert "\nthis silo: one record, δ = 1e-05, 95% intervals" in silos_text(
        [answer("")]
    )


def test_what_is_proved_stands_with_the_answer():
    _, sentence = silos_json([answer("north", lines=(PROVED,))])["answer"]
    assert sentence.endswith("ε ≈ 5.00 (4.00 – 6.00), at least 3.50.")


def test_a_silo_that_was_not_measured_is_named():
    some = [
        answer("north", lines=(UNMEASURED,)),
        answer("south", lines=lines(2.0)),
    ]
    sentences = silos_json(some)["answer"]
    assert sentences[2].endswith(
        "most in south, ε ≈ 1.00 (0.800 – 1.20); not measured in north."
    )
    _, sentence = silos_json(some[:1])["answer"]
    assert sentence.endswith(
        "learns of one record at δ = 1e-05: not measured in north."
    )
    assert silos_json(some[:1])["notes"] == [
        "north: the optimizer is Adam locally."
    ]
    assert silos_json(some[:1])["status"] == "not measured"


def test_units_and_deltas_are_not_mixed():
    mixed = [
        answer("north", epsilon=2.0),
        answer("south", epsilon=9.0, unit="person of 3 records"),
        answer("west", epsilon=5.0, delta=1e-7),
    ]
    text = words(silos_text(mixed))
    assert (
        "of one record at δ = 1e-05: in north, ε ≈ 2.00 (1.60 – 2.40)." in text
    )
    assert "of one person of 3 records at δ = 1e-05: in south, ε ≈ 9.00" in text
    assert (
        "of one record at δ = 1e-07: in west, ε ≈ 5.00 (4.00 – 6.00)." in text
    )
    assert "most in" not in text
    metrics = silo_metrics(mixed)
    assert metrics["silos-server-epsilon-south"] == 9.0
    assert "silos-server-epsilon" not in metrics


def test_nothing_says_patient_or_person_of_a_record():
    assert not re.search(r"patient|person", silos_text(THREE))


def test_a_defect_is_named_by_its_silo():
    silos = [
        answer("north", lines=(PROVED,)),
        answer("south", faults=("its clipping is off",)),
    ]
    report = silos_json(silos, ["west did not answer the last model"])
    assert report["status"] == "faulty"
    assert report["faults"] == [
        "north: more leaks to the server than theory allows.",
        "south: its clipping is off.",
        "west did not answer the last model.",
    ]
    assert all(
        fault in words(silos_text(silos)) for fault in report["faults"][:2]
    )


@pytest.mark.parametrize(
    ("silos", "faults", "status"),
    [
        (THREE, (), "ok"),
        (THREE, ("west is gone",), "unreliable"),
        (
            (
                answer(
                    "north",
                    lines=(SiloLine("server", 1, 0, 2, doubts=("few",)),),
                ),
            ),
            (),
            "unreliable",
        ),
        ((), (), "not measured"),
    ],
    ids=["ok", "a-fault-of-the-run", "a-doubt", "no-silo"],
)
def test_what_the_report_is_worth(silos, faults, status):
    assert silos_json(silos, faults)["status"] == status


def test_the_table_has_every_number():
    whole = SiloLine(
        "server", 2.15, 1.9, 2.4, proved=1.2, theory=3.03, linear_limit=2.05
    )
    text = silos_text(
        [
            answer(
                "north",
                lines=(whole, SiloLine("public", reason="it was not seen")),
            )
        ]
    )
    assert re.search(
        r"server +2\.15 \(1\.90 – 2\.40\) +1\.20 +3\.03 +2\.05", text
    )
    assert re.search(r"public +not measured +– +none known +–", text)
    assert "- north (public): it was not seen." in text
    assert max(map(len, text.splitlines())) <= 80


def test_infinite_numbers_are_named(schema):
    line = SiloLine("server", math.inf, 3.0, math.inf, theory=math.inf)
    report = silos_json([answer("north", lines=(line,))])
    (found,) = report["silos"][0]["lines"]
    assert (found["epsilon"], found["theory"], found["low"]) == (
        None,
        None,
        3.0,
    )
    assert found["unbounded"] == ["epsilon", "high", "theory"]
    assert report["answer"][0].endswith("is not bounded in north.")
    assert "∞ (3.00 – ∞)" in report["answer"][1]
    jsonschema.validate(report, schema)


def test_files_are_as_the_schema_says(tmp_path, schema):
    shared = answer(
        "north", design={"q": 0.02, "z": math.inf}, records={"server": "abcd"}
    )
    write_silos_report([shared, *THREE[1:]], ["west is gone"], tmp_path)
    written = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(written, schema)
    assert written["silos"][0]["design"] == {"q": 0.02, "z": None}
    assert "abcd" not in (tmp_path / "report.json").read_text()
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(written | {"status": "good"}, schema)


def test_page_and_terminal_have_the_same_words(tmp_path):
    silos = [answer("<b>north</b>", notes=("few canaries",)), *THREE[1:]]
    write_silos_report(silos, ["west is gone"], tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<b>north</b>" not in page
    shown, text = (
        words(html.unescape(page)),
        words(silos_text(silos, ["west is gone"])),
    )
    report = silos_json(silos, ["west is gone"])
    for one in (
        *report["answer"],
        *report["faults"],
        *report["notes"],
        *READING,
    ):
        assert one in shown
        assert one in text
    assert "limit" in READING[1]
    assert "no upper bound" in READING[1]


def test_the_page_asks_for_nothing_and_reads_on_a_telephone(tmp_path):
    write_silos_report(THREE, (), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)
    assert page.count('<table class="rows">') == 3
    cells = re.findall(r'<td class="n" data-label="([^"]+)">', page)
    assert len(cells) == 3 * 4 * 4
    assert set(cells) == {
        "ε (interval)",
        "at least",
        "every step",
        "linear limit",
    }


def test_metrics_are_the_largest_and_each_silo_s():
    metrics = silo_metrics(
        (answer("north & co"), *THREE[1:], answer("east", lines=(UNMEASURED,)))
    )
    assert metrics["silos-server-epsilon"] == 4.0
    assert metrics["silos-public-epsilon-west"] == 0.75
    assert metrics["silos-server-epsilon-north___co"] == 2.0
    assert not any("east" in name for name in metrics)


def test_a_claim_that_is_refuted_names_the_silo():
    silos = {
        "north": answer("north", lines=(PROVED,)),
        "south": answer("south"),
    }
    with pytest.raises(
        AssertionError, match=r"north: ε of one record is at least 3\.50"
    ):
        assert_silos_private(silos, epsilon=3.0, delta=1e-5)
    with pytest.raises(
        Undecided, match="north: the interval of ε is above the claim"
    ):
        assert_silos_private(silos, epsilon=3.7, delta=1e-5)
    assert_silos_private(silos, epsilon=3.7, delta=1e-5, allow_undecided=True)
    assert_silos_private(silos, epsilon=5.0, delta=1e-5)


def test_a_claim_is_not_passed_by_silence_nor_with_faults():
    silent = answer("north", lines=(UNMEASURED,))
    for silos in ({}, {"north": silent}):
        with pytest.raises(Undecided):
            assert_silos_private(silos, epsilon=3.0, delta=1e-5)
    faulty = dataclasses.replace(THREE[0], faults=("its clipping is off",))
    with pytest.raises(AssertionError, match="north: its clipping is off"):
        assert_silos_private({"north": faulty}, epsilon=99.0, delta=1e-5)
    with pytest.raises(ValueError, match="as in the answer of north"):
        assert_silos_private({"north": THREE[0]}, epsilon=3.0, delta=1e-6)


def test_a_note_stands_once_with_all_whom_it_is_of():
    reason = "the server moves the model by FedAdam, not by averages"
    line = [
        SiloLine(name, theory=3.0, reason=reason)
        for name in ("partner", "outsider")
    ]
    rows = (SiloLine("server", 2.0, 1.6, 2.4, theory=3.0), *line)
    notes = silos_json(
        [answer("north", lines=rows), answer("south", lines=rows)]
    )["notes"]
    assert notes == [f"north, south (partner, outsider): {reason}."]
