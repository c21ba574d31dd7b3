"""The public names of a Python package and their signatures, read from its sources: nothing is imported or executed.

Names are dotted paths below the package. A class's methods stand under the class's own name, wherever it is defined,
and each module's names under the module's path: `Buffer.dispatch` and `buffers.legacy.Buffer` are both there. A
signature is its parameters as written, with defaults; "" where the sources do not say (native classes, values).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

Names = dict[str, str]
_SPECIAL = ("__call__", "_unpack_bias")  # of those with an underscore: what callers use
_SKIPPED = ("prerequisites", "_build_info", "setup")  # of building and installing, not of calling


def names_of(package: Path) -> Names:
    """Every public name of the package at this folder."""
    found: Names = {}
    for path in sorted(package.rglob("*.py")):
        parts = list(path.relative_to(package).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        if parts and (parts[-1] in _SKIPPED or parts[-1].startswith("test_")):
            continue
        module = ".".join(parts)
        if module:
            found[module] = "module"
        is_package = path.name == "__init__.py"
        for name, signature in _module_names(ast.parse(path.read_text(encoding="utf-8")), is_package):
            if "." in name:  # a method
                found[name] = signature
                continue
            found[f"{module}.{name}" if module else name] = signature if not is_package else ""
            if signature and signature[0] == "(" and not is_package:
                found.setdefault(f"{module}.{name}", signature)
    return found


def _module_names(tree: ast.Module, exports_imports: bool) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and exports_imports:
            if node.level or (node.module or "").split(".")[0].startswith(("deep_ep", "uccl", "hybrid_ep", "_C")):
                yield from ((a.asname or a.name, "") for a in node.names if _public(a.asname or a.name))
        elif isinstance(node, ast.FunctionDef) and _public(node.name):
            yield node.name, parameters(node)
        elif isinstance(node, ast.ClassDef) and _public(node.name):
            methods = [m for m in node.body if isinstance(m, ast.FunctionDef)]
            made = [m for m in methods if m.name == "__init__"]
            yield node.name, parameters(made[0]) if made else ""
            for method in methods:
                if _public(method.name) or method.name in _SPECIAL:
                    yield f"{node.name}.{method.name}", parameters(method)


def _public(name: str) -> bool:
    return not name.startswith("_")


def parameters(function: ast.FunctionDef) -> str:
    """`(x, handle=None, *, hidden)`, without self, cls and annotations."""
    a = function.args
    plain = [*a.posonlyargs, *a.args]
    defaults = [None] * (len(plain) - len(a.defaults)) + list(a.defaults)
    parts = [_shown(arg.arg, default) for arg, default in zip(plain, defaults, strict=True)]
    is_static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
    if parts and not is_static and plain[0].arg in ("self", "cls"):
        parts = parts[1:]
    if a.vararg:
        parts.append(f"*{a.vararg.arg}")
    elif a.kwonlyargs:
        parts.append("*")
    parts += [_shown(arg.arg, default) for arg, default in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    if a.kwarg:
        parts.append(f"**{a.kwarg.arg}")
    return f"({', '.join(parts)})"


def _shown(name: str, default: ast.expr | None) -> str:
    return name if default is None else f"{name}={ast.unparse(default)}"
