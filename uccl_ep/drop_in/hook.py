"""The import hook: a finder that answers for `deep_ep`, in front of whatever is installed under that name.

Nothing is written to disk, so another distribution that provides `deep_ep` stays as it is and is found again after
`uninstall_as_deep_ep()`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, MutableMapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from uccl_ep.drop_in.names import MODULES, PACKAGES, TOP_LEVEL, fill
from uccl_ep.errors import Described, refuse

if TYPE_CHECKING:
    from importlib.metadata import Distribution

ORIGIN = "uccl_ep.drop_in"


class _Loader(Loader):
    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = f"{module.__name__}, answered by uccl_ep. deep_ep.__version__ says so too."
        fill(module.__name__, module.__dict__)


class _Finder(MetaPathFinder):
    """Answers for `deep_ep` and its modules. Its package has no folder, so no part of another one is mixed in.

    Args:
        top: also for the packages themselves, not only for what is below them.
    """

    def __init__(self, top: bool) -> None:
        self._top = top

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES or (not self._top and "." not in fullname):
            return None
        return ModuleSpec(fullname, _Loader(), origin=ORIGIN, is_package=fullname in PACKAGES)

    def find_distributions(self, context: Any = None) -> Iterable[Distribution]:
        """`importlib.metadata.version("deep_ep")`: NeMo puts it into the key of a cache. By name only."""
        from uccl_ep.drop_in.metadata import distributions  # whoever asks has loaded importlib.metadata

        return distributions(context)


_finder, _below = _Finder(top=True), _Finder(top=False)
_replaced: dict[str, ModuleType] = {}


def become(module: str, namespace: MutableMapping[str, Any]) -> None:
    """Makes a package of docker/deep_ep, which is a file, what the hook makes of `module`; what is below it, too.

    Args:
        module: its name. namespace: its `globals()`.
    """
    fill(module, namespace)
    if _below not in sys.meta_path:
        sys.meta_path.append(_below)  # last: a file beside the package comes first


def is_installed() -> bool:
    """Whether `import deep_ep` is answered by uccl_ep's import hook in this process."""
    return _finder in sys.meta_path


def install_as_deep_ep(replace: bool = False) -> None:
    """From now on `import deep_ep` in this process gives uccl_ep, whatever is installed under that name. Idempotent.

    The modules of `uccl_ep.drop_in.names.MODULES` come into being when they are imported; no file is written. Child
    processes do not inherit this: see `uccl-ep run` and UCCL_EP_AS_DEEP_EP.

    Args:
        replace: also when another `deep_ep` has been imported already; modules that hold its names keep them.

    Raises:
        InvalidArgument: another `deep_ep` has been imported already and `replace` is False.
    """
    if is_installed():
        return
    loaded = _loaded()
    if loaded and not replace:
        where = getattr(loaded[min(loaded)], "__file__", None) or "an unknown place"
        refuse(
            "deep_ep",
            Described(f"one imported from {where}"),
            "imported only after install_as_deep_ep()",
            "Or pass replace=True.",
        )
    _replaced.update(loaded)
    for name in loaded:
        del sys.modules[name]
    sys.meta_path.insert(0, _finder)


def uninstall_as_deep_ep() -> None:
    """Takes the hook away: `import deep_ep` finds what is installed under that name, or nothing. Idempotent.

    Objects that were imported meanwhile stay usable; modules that `install_as_deep_ep(replace=True)` took out of
    `sys.modules` are put back.
    """
    if not is_installed():
        return
    sys.meta_path.remove(_finder)
    for name in _loaded():
        del sys.modules[name]
    sys.modules.update(_replaced)
    _replaced.clear()


def _loaded() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in TOP_LEVEL}
