"""Names for parametrised cases: words and numbers only, the same in every run."""

import re


def in_words(schedule: object) -> str:
    """Classes and settings of a schedule in their order: `DropOut-Cyclic-20-3-0.25`.

    Its `repr` without brackets, names of fields and fields that are None.
    """
    found = re.findall(
        r"[^(),= ]+(?![^(),]*=)", repr(schedule).replace("None", "")
    )
    return "-".join(f"{float(x):.4g}" if x[0].isdigit() else x for x in found)
