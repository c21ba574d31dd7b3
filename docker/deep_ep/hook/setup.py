"""Puts the .pth file beside the packages: Python reads such files at start, and pyproject.toml has no word for them."""

from setuptools import setup
from setuptools.command.build_py import build_py

PTH = "uccl_ep_as_deep_ep.pth"


class BuildWithPth(build_py):
    """build_py, and the .pth file."""

    def run(self) -> None:
        super().run()
        self.mkpath(self.build_lib)
        self.copy_file(PTH, f"{self.build_lib}/{PTH}")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), f"{self.build_lib}/{PTH}"]


setup(cmdclass={"build_py": BuildWithPth})
