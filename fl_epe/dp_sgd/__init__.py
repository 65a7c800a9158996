"""Audits of DP-SGD in the same single run: canary gradients among the clipped gradients of a step.

`audit_dp_sgd` goes around training with an Opacus ``DPOptimizer`` or with `PlainDPSGD`, a reference
step without Opacus; both need PyTorch (the extra ``sim``). Each canary stands for one training
example, and the record is that of any other audited run.

Examples:
    >>> import numpy as np
    >>> from fl_epe.dp_sgd import PlainDPSGD, audit_dp_sgd
    >>> optimizer = PlainDPSGD(
    ...     np.zeros(5000), learning_rate=0.1, noise_multiplier=1.0, max_grad_norm=1.0,
    ...     expected_batch_size=8, seed=0)
    >>> with audit_dp_sgd(optimizer, delta=1e-5, num_canaries=200, steps=20, seed=1) as audit:
    ...     for _ in range(20):
    ...         model = optimizer.step(np.zeros((8, 5000)))
    >>> 3 < audit.epsilon().epsilon < 6  # by theory 4.4
    True
"""

from fl_epe.dp_sgd.audit import DPSGDAudit
from fl_epe.dp_sgd.linear import Response
from fl_epe.dp_sgd.optimizers import PlainDPSGD, StepFacts, Steps, flat
from fl_epe.dp_sgd.seen_steps import SeenSteps, call_or_undo, hooked
from fl_epe.dp_sgd.start import audit_dp_sgd
from fl_epe.dp_sgd.step_checks import StepFindings

__all__ = [
    "DPSGDAudit",
    "PlainDPSGD",
    "Response",
    "SeenSteps",
    "StepFacts",
    "StepFindings",
    "Steps",
    "audit_dp_sgd",
    "call_or_undo",
    "flat",
    "hooked",
]
