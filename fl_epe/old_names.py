"""Names that settings had in version 0.1; records, plans and command lines may still hold them."""

from collections.abc import Mapping
from typing import Any

OLD_NAMES = {
    "canaries": "num_canaries",
    "canary_repeats": "canary_participations",
    "presentations": "participations",
    "repeats": "replicates",
}


def with_new_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values, each under the name that it has now."""
    return {OLD_NAMES.get(name, name): value for name, value in values.items()}
