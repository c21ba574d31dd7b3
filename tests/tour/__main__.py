"""`python -m tests.tour`: the newcomer's path from nothing to a failure that is understood. `make tour` runs it."""

from __future__ import annotations

import sys

from tests.tour.run import main

if __name__ == "__main__":
    sys.exit(main())
