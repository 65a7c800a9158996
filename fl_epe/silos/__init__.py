"""Audits of records across a federation of a few silos: what one record leaks, to each adversary.

`audit_records` goes around the training of each round in a silo, with Flower or any other loop;
`final_answer` says what the silo has measured once it has the last model. The server's half, for
Flower, is `fl_epe.flower.RecordAudit`. The room needs PyTorch for training, and none for answers.

Examples:
    >>> from fl_epe.silos import final_answer
    >>> final_answer({}, [])
    Traceback (most recent call last):
    LookupError: Expected a dict that holds the audit of a silo, found none in it.
"""

from typing import TYPE_CHECKING

from fl_epe.lazy import lazy_names
from fl_epe.silos.closing import answer_records, final_answer

if TYPE_CHECKING:
    from fl_epe.silos.audit import SiloAudit, audit_records

__all__ = ["SiloAudit", "answer_records", "audit_records", "final_answer"]

__getattr__, __dir__ = lazy_names(
    __name__, {"fl_epe.silos.audit": ("SiloAudit", "audit_records")}
)
