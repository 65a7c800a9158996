"""The audits, by name; what an audit needs is imported when it runs."""

from __future__ import annotations

import dataclasses
import importlib
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fl_epe.audits.settings import AuditSettings

if TYPE_CHECKING:
    from fl_epe.reporting import AuditResult


@dataclasses.dataclass(frozen=True)
class Audit:
    """One audit of the list.

    Attributes:
        summary: what it does, in a line.
        source: the paper that it is from, with its section, table or figure.
        module: of its function ``audit``, in this room.
        extra: of this package that it needs besides, or "".
    """

    summary: str
    source: str
    module: str
    extra: str = ""

    def run(self, settings: AuditSettings) -> AuditResult:
        """Run it.

        Raises:
            ValueError: if it cannot be run with these settings.
            ModuleNotFoundError: if a package that it needs is not installed.
        """
        function = importlib.import_module(f"fl_epe.audits.{self.module}").audit
        result: AuditResult = function(settings)
        return result


AUDITS: Mapping[str, Audit] = types.MappingProxyType(
    {
        "gaussian": Audit(
            "one round of clipping and Gaussian noise, each bound beside the theorem",
            "Nasr et al. 2023, section 5",
            "gaussian",
        ),
        "dp-sgd": Audit(
            "DP-SGD audited in one run on digits: canaries in every step, and by coins",
            "Andrew et al. 2024, for steps of DP-SGD",
            "dp_sgd",
            extra="sim",
        ),
        "broken": Audit(
            "twelve broken mechanisms beside correct ones: which method finds which bug",
            "Tramèr et al. 2022, section 4",
            "broken",
        ),
        "substitute": Audit(
            "one record replaced by another: canaries on a small model against three theorems",
            "Pradhan et al. 2025, section 6",
            "substitute",
            extra="sim",
        ),
        "substitute-federated": Audit(
            "canary clients of +c or −c by secret coins, in one run of federated learning",
            "Pradhan et al. 2025, section 3.2.1, for clients",
            "substitute_federated",
            extra="sim",
        ),
        "step-audit": Audit(
            "every step of two runs an observation: Dirac, constant and random canary gradients",
            "Nasr et al. 2023, sections 5.3 to 5.5, figures 5 and 15",
            "step_audit",
        ),
        "observations": Audit(
            "bounds against the number of observations, for ε = 1, 2, 4 and 6",
            "Nasr et al. 2023, figure 3",
            "observations",
        ),
        "thresholds": Audit(
            "bounds against the decision threshold: f-DP is flat, (ε, δ)-DP is not",
            "Nasr et al. 2023, figure 4",
            "thresholds",
        ),
        "methods": Audit(
            "which bound proves most of one step, and of a run of 2,500 steps",
            "Nasr et al. 2023, table 1",
            "methods",
        ),
        "input-canaries": Audit(
            "canaries that are examples, in DP-SGD on digits: every step seen, or the final model",
            "Nasr et al. 2023, section 6.4, figures 10, 12 and 16",
            "input_canaries",
            extra="sim",
        ),
        "canife": Audit(
            "crafted samples beside random directions on one run of DP-SGD",
            "Maddock et al. 2022; Andrew et al. 2024, section 5.4",
            "canife",
            extra="sim",
        ),
        "final-model": Audit(
            "canaries made to be remembered by the final model, beside random ones",
            "Andrew et al. 2024, section 5; Pradhan et al. 2025",
            "remembered",
            extra="sim",
        ),
    }
)
"""Every audit by the name that one types."""
