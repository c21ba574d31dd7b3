"""Imported by uccl_ep_as_deep_ep.pth at each start of Python: quick, and silent where there is nothing to do."""

import os


def activate() -> None:
    """Hands over to uccl_ep, if the variable is set and uccl_ep is installed."""
    if not os.environ.get("UCCL_EP_AS_DEEP_EP", "").strip():
        return
    try:
        from uccl_ep.drop_in import startup
    except ImportError:
        return  # an interpreter has to start; `import deep_ep` then finds what is installed
    startup.activate()


activate()
