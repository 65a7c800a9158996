"""``python -m fl_epe``: the command ``fl-epe`` of this interpreter."""

import sys

from fl_epe.cli import main

if __name__ == "__main__":
    status = main()
    # An interrupt that passes through exec() of a text, as SciPy's modules do while they are
    # imported, counts for CPython as one that nobody handled: `python -m` then ends by SIGINT,
    # whatever status it was given. The next exec() of a text forgets it.
    exec("")  # noqa: S102 (an empty one)
    sys.exit(status)
