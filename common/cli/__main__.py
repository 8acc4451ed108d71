"""`python -m common.cli`: the `sangam` command without its installed script."""

from __future__ import annotations

import sys

from common.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
