# Python imports this module as it starts, when its folder is on PYTHONPATH (`uccl-ep run` puts it there): it turns the
# drop-in on and then hands over to the sitecustomize that would have been found without it.
import importlib.machinery
import importlib.util
import os
import sys

from uccl_ep.drop_in.startup import activate

activate()

_here = os.path.dirname(os.path.abspath(__file__))
_others = [entry for entry in sys.path if os.path.abspath(entry) != _here]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["sitecustomize"] = _module
    _spec.loader.exec_module(_module)
