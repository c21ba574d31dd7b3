"""Names and signatures are read from sources as they stand there, and only public ones."""

from __future__ import annotations

from pathlib import Path

from tests.builds.read import names_of

SOURCES = {
    "__init__.py": "from .one.two import Thing, _hidden\nfrom deep_ep._C import Config\nimport os\n__version__ = '1'\n",
    "prerequisites.py": "def check(): ...\n",
    "test_it.py": "def test(): ...\n",
    "one/__init__.py": "",
    "one/two.py": (
        "import os\n"
        "class Thing:\n"
        "    def __init__(self, group: object, size: int = 1 << 4, *, flag=(1, 2)) -> None: ...\n"
        "    @staticmethod\n"
        "    def hint(self_like, b=None): ...\n"
        "    def _private(self): ...\n"
        "    def __call__(self, **more): ...\n"
        "class Empty: ...\n"
        "def free(*parts): ...\n"
        "def _hidden(): ...\n"
    ),
}


def test_read_names_and_signatures(tmp_path: Path) -> None:
    for name, text in SOURCES.items():
        path = tmp_path / "deep_ep" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert names_of(tmp_path / "deep_ep") == {
        "Thing": "", "Config": "", "one": "module", "one.two": "module",
        "one.two.Thing": "(group, size=1 << 4, *, flag=(1, 2))", "Thing.hint": "(self_like, b=None)",
        "Thing.__call__": "(**more)", "one.two.Empty": "", "one.two.free": "(*parts)",
    }  # fmt: skip
