"""``python -m fl_epe``: the command ``fl-epe`` of this interpreter."""

import sys

from fl_epe.cli import main

if __name__ == "__main__":
    sys.exit(main())
