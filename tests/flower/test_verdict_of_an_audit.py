"""`CanaryAudit(verdict=…)`: the bound that counts, named before the run."""

import pytest
from flwr.serverapp.strategy import FedAvg

from fl_epe import RunConfig
from fl_epe.flower import CanaryAudit, DPFedAvg
from fl_epe.flower.checkpoint import fingerprint


def _audit(strategy=None, **named):
    return CanaryAudit(strategy or FedAvg(), num_canaries=4, delta=1e-3, **named)


def _settings(audit):
    return audit._settings


@pytest.mark.parametrize(("given", "kept"), [({}, "auto"), ({"verdict": "final:mean"},) * 2])
def test_it_is_kept_in_the_record_and_the_checkpoint(given, kept):
    kept = kept if isinstance(kept, str) else kept["verdict"]
    settings = _settings(_audit(**given))
    assert settings.to_config(averages=True)["verdict"] == kept
    assert fingerprint(settings)["verdict"] == kept


def test_one_that_the_audit_cannot_give_is_refused():
    for verdict in ("largest", "one-run"):
        with pytest.raises(ValueError, match="verdict="):
            _audit(verdict=verdict)


def test_a_strategy_with_canaries_of_its_own_keeps_its_verdict():
    config = RunConfig(clients=30, num_canaries=4, unobserved=4, verdict="lifted")
    assert _settings(_audit(DPFedAvg(config))).verdict == "lifted"
    assert _settings(_audit(DPFedAvg(config), verdict="final:lifted")).verdict == "final:lifted"
    coins = RunConfig(clients=30, num_canaries=4, unobserved=4, inclusion="coin", verdict="one-run")
    assert _settings(_audit(DPFedAvg(coins))).verdict == "one-run"
