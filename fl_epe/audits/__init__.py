"""Audits of mechanisms, ready to run by name: ``fl-epe audit NAME``.

Each is a file of its own with a function from `AuditSettings` to an
`fl_epe.reporting.AuditResult`; `AUDITS` lists them.

Examples:
    >>> from fl_epe.audits import AUDITS, AuditSettings
    >>> result = AUDITS["gaussian"].run(AuditSettings(quick=True, seed=1))
    >>> result.passed
    True
"""

from fl_epe.audits.by_name import AUDITS, Audit
from fl_epe.audits.settings import AuditSettings

__all__ = ["AUDITS", "Audit", "AuditSettings"]
