"""Named seeds."""

import dataclasses

import pytest

from fl_epe.seeding import Seeds


def test_seeds():
    assert Seeds.derive(3) == Seeds.derive(3)
    assert len(set(dataclasses.asdict(Seeds.derive(3)).values())) == 5
    assert Seeds.derive(None) != Seeds.derive(None)
    assert Seeds.derive(None).noise is None  # entropy leaves no trace in records or checkpoints
    with pytest.raises(ValueError, match="seed=-4 >= 0"):
        Seeds.derive(-4)
