"""Tables, and fenced blocks with their language, title and line."""

from __future__ import annotations

from docs.generate.markdown import blocks, table, without_blocks

PAGE = """# Title

```python title="a b.py"
x = 1
```

- item

    ```bash
    echo "```"
      indented
    ```

```
plain
```
"""


def test_docs_markdown_tables() -> None:
    assert table(["a", "b"], [["1|2", "x\ny  z"], ["", "-"]]) == "| a | b |\n|---|---|\n| 1\\|2 | x y z |\n|  | - |\n"


def test_docs_markdown_blocks() -> None:
    first, second, third = blocks(PAGE)
    assert (first.language, first.title, first.body, first.line) == ("python", "a b.py", "x = 1\n", 3)
    assert (second.language, second.body, second.line) == ("bash", 'echo "```"\n  indented\n', 9)
    assert (third.language, third.title, third.body) == ("", "", "plain\n")


def test_docs_markdown_without_blocks_keeps_lines() -> None:
    rest = without_blocks(PAGE)
    assert rest.count("\n") == PAGE.count("\n")
    assert "# Title" in rest and "- item" in rest and "echo" not in rest and "plain" not in rest
