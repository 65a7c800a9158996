"""`simulations/audits/broken_mechanisms.py`: finds the zoo's bugs, and spares their twins."""

import broken_mechanisms
import pytest

pytestmark = pytest.mark.slow


def test_the_quick_form_prints_every_bug(capsys):
    broken_mechanisms.main(["--quick"])
    out = capsys.readouterr().out
    assert "finds 12 of 12 broken mechanisms" in out
    assert "of a correct twin in 0 of 12 games" in out
    assert "False alarms" not in out
    short = {line.split()[0]: line.split()[-2:] for line in out.split("\n\n")[-1].splitlines()[2:]}
    for name in ("clips-the-mean", "sensitivity-over-batch", "one-tensor-unclipped"):
        assert short[name] == ["0", "1"], name
    for name in ("few-seeds", "shared-noise", "repeated-noise"):
        assert short[name] == ["1", "1"], name
