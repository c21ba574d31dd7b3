"""`python -m uccl_ep.tools.conformance MODULE`: the command `uccl-ep conformance`."""

from __future__ import annotations

import sys

from uccl_ep.cli import main

if __name__ == "__main__":  # ranks are spawned, and import this file again
    sys.argv.insert(1, "conformance")
    main()
