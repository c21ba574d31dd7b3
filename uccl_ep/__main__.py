# `python -m uccl_ep ...` is `uccl-ep ...`.
from uccl_ep.cli import main

if __name__ == "__main__":
    main()
