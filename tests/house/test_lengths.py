"""Files under 400 lines (600 with a reason), host functions under 60, device functions under 150, six parameters and
then a struct."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

import lizard

from tests.house.source import NATIVE, PRODUCT, files, judge, read

MOST_FILE_LINES = 400
MOST_EXCEPTED_LINES = 600  # of a file that exceptions.txt lists
MOST_HOST_LINES = 60
MOST_DEVICE_LINES = 150
MOST_PARAMETERS = 6  # of native functions; the Python API's keyword arguments are DeepEP's


# Its functions are Python methods, whose keywords are their parameters.
KEYWORDS = "proxy/bindings/launches.cpp"
_NO_CALLS = re.compile(r"\b(alignas|KERNEL_BOUNDS)\([^)]*\)")  # lizard takes them for functions


class Function(NamedTuple):
    name: str
    first_line: int
    last_line: int
    num_parameters: int

    @property
    def num_lines(self) -> int:
        return self.last_line - self.first_line + 1


def functions(text: str) -> list[Function]:
    """Every C++ function with a body, as lizard finds them."""
    found = lizard.analyze_file.analyze_source_code("source.hpp", _NO_CALLS.sub("", text)).function_list
    return [Function(f.name.rpartition("::")[2], f.start_line, f.end_line, f.parameter_count) for f in found]


def most_lines(path: str) -> int:
    device = path.startswith("kernels/") and not path.startswith("kernels/host/")
    return MOST_DEVICE_LINES if device else MOST_HOST_LINES


def python_functions(text: str) -> list[Function]:
    """Top-level functions and methods, without their docstrings (shapes and units may take the room they need)."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            documented = ast.get_docstring(node) is not None
            body = node.body[0].end_lineno or node.lineno if documented else node.lineno
            found.append(Function(node.name, body + 1 if documented else body, node.end_lineno or body, 0))
    return found


def problems(path: str, text: str) -> dict[str, str]:
    found = {}
    lines = text.count("\n")
    if lines > MOST_FILE_LINES:
        found[path] = f"{lines} lines, at most {MOST_FILE_LINES}"
    if lines > MOST_EXCEPTED_LINES:
        found[f"{path} excepted"] = f"{lines} lines, at most {MOST_EXCEPTED_LINES} whatever the reason"
    if not path.startswith(PRODUCT):
        return found
    limit = most_lines(path)
    for function in python_functions(text) if path.endswith(".py") else functions(text):
        subject = f"{path}:{function.name}"
        if function.num_lines > limit:
            found[subject] = f"{function.num_lines} lines from line {function.first_line}, at most {limit}"
        if function.num_parameters > MOST_PARAMETERS and path != KEYWORDS:
            found[subject] = f"{function.num_parameters} parameters, at most {MOST_PARAMETERS}, then a struct"
    return found


def test_house_lengths() -> None:
    found: dict[str, str] = {}
    for path in files([*PRODUCT, "tests", "bench"], [*NATIVE, ".py"]):
        found |= problems(path, read(path))
    judge("length", found)


CPP = """// A sample.
#include "wire/types.h"
#define TWICE(x) \\
  do { (x); (x); } while (0)
namespace uccl {
enum class Kind : u32 { kA = 1, kB };
struct alignas(64) Box {
  Box(int a, int b) : a_(a), b_{b} {
    a_ = '{';
  }
  ~Box() { close(); }
  int a_, b_{2};
  bool operator==(const Box& o) const { return a_ == o.a_; }
};
inline constexpr int kTable[] = {1, 2, 3};
template <class Wait, class T = std::vector<std::pair<int, int>>>
bool push(const std::map<int, int>& m, int b, Wait&& wait) {
  auto f = [&](int x) { return x; };  // }
  for (int i = 0; i < 3; ++i) { wait(); }
  const char* s = "}{";
  return f(b);
}
KERNEL void many(int a, int b, int c, int d, int e, int f, int g) {
}
int declared(int a, int b, int c, int d, int e, int f, int g);
static struct Box make() { return {1, 2}; }
}  // namespace uccl
"""


def test_house_lengths_finds_cpp_functions() -> None:
    found = {f.name: f for f in functions(CPP)}
    assert {"push", "many", "make", "~Box", "Box"} <= set(found)
    assert "declared" not in found and "TWICE" not in found and "kTable" not in found
    assert (found["push"].first_line, found["push"].last_line) == (17, 22)  # without the template's heading
    assert found["push"].num_parameters == 3
    assert found["many"].num_parameters == 7
    assert found["~Box"].num_parameters == 0
    assert any(f.num_lines == 3 for f in functions(CPP) if f.name == "Box")


def test_house_lengths_check_can_fail() -> None:
    long_body = "void f() {\n" + "  g();\n" * 60 + "}\n"
    assert problems("proxy/ring/x.h", long_body)
    assert problems("kernels/host/x.cpp", long_body)
    assert not problems("kernels/device/x.h", long_body)
    assert problems("kernels/device/x.h", "DEV void f() {\n" + "  g();\n" * 150 + "}\n")
    assert problems("proxy/ring/x.h", CPP)  # `many`
    assert problems("proxy/bindings/x.cpp", CPP)
    assert not problems(KEYWORDS, CPP)
    assert problems("uccl_ep/x.py", "def f():\n" + "    g()\n" * 60)
    assert not problems("uccl_ep/x.py", 'def f():\n    """' + "words\n" * 60 + '    """\n    g()\n')
    assert list(problems("tests/x.py", "pass\n" * 401)) == ["tests/x.py"]
    assert not problems("tests/x.py", "pass\n" * 400)
    assert list(problems("tests/x.py", "pass\n" * 601)) == ["tests/x.py", "tests/x.py excepted"]
    assert not problems("tests/x.py", "def f():\n" + "    g()\n" * 60)
