"""What a newcomer typed and saw: a markdown file, and each terminal view as a picture (PNG)."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.tour.window import draw

COLUMNS = 150
_MOST_LINES = 60  # of one command's output in the text; pictures have all of it


class Transcript:
    """Written as it grows, so that a tour that fails leaves what was seen until then.

    Args:
        folder: where transcript.md and the pictures go; made when missing.
        told: also prints every line there; None: only writes.

    Attributes:
        pictures: PNG files that were made. not_made: how many were not. lacks: why, and what would fix it.
    """

    def __init__(self, folder: Path, told: Console | None = None) -> None:
        self.folder, self._told = folder, told
        self.pictures: list[Path] = []
        self.lacks: list[str] = []
        self.not_made = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "transcript.md"
        self._path.write_text("# The newcomer's path\n", encoding="utf-8")

    def chapter(self, title: str, why: str) -> None:
        """Begins a step: what a newcomer wants, and why."""
        self._add(f"\n## {title}\n\n{why}\n")

    def say(self, text: str) -> None:
        """A sentence between commands."""
        self._add(f"\n{text}\n")

    def command(self, typed: str, output: str, where: str = "") -> None:
        """What was typed, on which host, and what came back; colours are left out."""
        self._block([f"{where}$ {typed}", *plain(output).rstrip().splitlines()])

    def output(self, text: str) -> None:
        """What something that runs has printed by itself."""
        self._block(plain(text).rstrip().splitlines())

    def _block(self, lines: list[str]) -> None:
        if len(lines) > _MOST_LINES:
            half = _MOST_LINES // 2
            lines = [*lines[:half], f"... {len(lines) - 2 * half} lines ...", *lines[-half:]]
        self._add("\n".join(["", "```text", *(line.rstrip() for line in lines), "```", ""]))

    def picture(self, name: str, typed: str, output: str, columns: int = COLUMNS) -> Path:
        """A terminal's window of so many columns with a command and its coloured output, as NAME.png."""
        path = self.folder / f"{name}.png"
        draw(Text.assemble((f"$ {typed}\n", "bold"), Text.from_ansi(output.rstrip())), path, columns, "uccl-ep")
        self.show(path)
        return path

    def show(self, picture: Path) -> None:
        """Takes in a picture that lies beside the transcript."""
        self.pictures.append(picture)
        self._add(f"\n![{picture.stem}]({picture.name})\n")

    def lack(self, count: int, why: str) -> None:
        """Says that `count` pictures were not made, in the text and again at the tour's end."""
        self.lacks.append(why)
        self.not_made += count
        self._add(f"\n**NOT MADE:** {why}\n")

    def _add(self, text: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)
        if self._told is not None:
            self._told.print(text, markup=False, highlight=False, end="", soft_wrap=True)


def plain(output: str) -> str:
    """Without the codes that colour it."""
    return Text.from_ansi(output).plain
