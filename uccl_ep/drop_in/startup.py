"""Turns the drop-in on when UCCL_EP_AS_DEEP_EP says so: what runs as an interpreter starts, long before user code.

Called from the `sitecustomize` that `uccl-ep run` puts on the path, and from the .pth file of docker/deep_ep/hook. It
must be cheap, load neither torch nor the native module, and never raise: an interpreter has to start.
"""

from __future__ import annotations

import os
import warnings

VARIABLE = "UCCL_EP_AS_DEEP_EP"


def activate() -> bool:
    """Installs the import hook if the variable is on; returns whether it is installed now.

    Warns:
        UserWarning: the variable has a value that is not allowed, or `deep_ep` has been imported already.
    """
    text = os.environ.get(VARIABLE, "")
    if not text.strip():
        return False
    from uccl_ep.drop_in.hook import install_as_deep_ep
    from uccl_ep.errors import UcclEpError
    from uccl_ep.settings import Settings

    try:
        if not Settings.from_environment({VARIABLE: text}).as_deep_ep:
            return False
        install_as_deep_ep()
    except UcclEpError as error:
        warnings.warn(f"deep_ep is left as it is: {error}", stacklevel=2)
        return False
    return True
