"""Sizes that a reader can hold in mind: functions and classes, in Python and in C++.

C++ is measured by how clang-format lays it out. A class counts with all its member functions, wherever they stand:
splitting one over several files makes it no smaller.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FUNCTION_LINES = 70
MAX_CLASS_LINES = 400
MAX_PUBLIC_METHODS = 30

# What is larger still, with its lines or its public methods today. Nothing may be added here, and nothing may grow.
LARGER_FUNCTIONS: dict[str, int] = {}
LARGER_CLASSES: dict[str, int] = {}
MORE_METHODS: dict[str, int] = {}

CLASS = re.compile(r"^(?:template <.*> )?(?:class|struct) (?:alignas\(.*\) )?(\w+)[^;()]*\{$")
MEMBER = re.compile(r"^\S.*?\b(\w+)::~?\w+\(")
ACCESS = re.compile(r"^ (public|private|protected):")
METHOD = re.compile(r"^  (?!//|using |static_assert|friend )[\w~\[].*\(")
# A line that opens a function's body; what may stand before the brace is an initialiser list or a return type.
NO_FUNCTION = re.compile(
    r"^ *(?://|/?\*|#|}|(?:namespace|class|struct|enum|union|extern|if|for|while|switch|else|do|try|case)\b)"
)


def cpp_sources() -> list[Path]:
    found = [path for path in (ROOT / "native").rglob("*") if path.suffix in {".h", ".cpp", ".inl"}]
    assert len(found) > 10
    return sorted(path for path in found if "tests" not in path.relative_to(ROOT).parts)


def end_of(lines: list[str], first: int, indent: str) -> int:
    """The line that closes what line ``first`` opens."""
    return next(
        (n for n in range(first + 1, len(lines)) if re.match(indent + r"\}(?![\w])", lines[n])),
        len(lines) - 1,
    )


def cpp_functions(text: str) -> Iterator[tuple[str, int]]:
    """First line and number of lines of each function that stands in a namespace or in a class, without those in it."""
    lines = text.split("\n")
    n = 0
    while n < len(lines):
        indent = re.match(r" *", lines[n]).group()  # type: ignore[union-attr]
        if len(indent) > 2 or NO_FUNCTION.match(lines[n]) or "(" not in lines[n]:
            n += 1
            continue
        first = n  # its head may go on over several lines, which are indented
        while not lines[n].endswith(("{", ";", "}")) and n + 1 < len(lines):
            n += 1
        if lines[n].endswith("{") and "= {" not in lines[n]:
            last = end_of(lines, n, indent)
            yield lines[first].strip(), last - first + 1
            n = last
        n += 1


def cpp_classes(texts: list[str]) -> tuple[Counter[str], Counter[str]]:
    """Lines and public methods of each class."""
    size: Counter[str] = Counter()
    public: Counter[str] = Counter()
    for text in texts:
        lines = text.split("\n")
        n = 0
        while n < len(lines):
            last = n
            if opened := CLASS.match(lines[n]):
                last = end_of(lines, n, "")
                size[opened[1]] += last - n + 1
                access = "private" if re.match(r".*\bclass\b", lines[n]) else "public"
                for line in lines[n + 1 : last]:
                    if changed := ACCESS.match(line):
                        access = changed[1]
                    public[opened[1]] += access == "public" and METHOD.match(line) is not None
            elif (member := MEMBER.match(lines[n])) and not lines[n].startswith(("//", "using", "return")):
                last = n if lines[n].endswith("}") else end_of(lines, n, "")
                size[member[1]] += last - n + 1
            n = last + 1
    return size, public


def python_classes(tree: ast.Module) -> Iterator[tuple[str, int, int]]:
    """Name, lines and public methods of each class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name[0] != "_"]
            yield node.name, (node.end_lineno or 0) - node.lineno + 1, len(methods)


def too_large(name: str, lines: int, public: int) -> str:
    """What is wrong with a class of this size, or nothing."""
    wrong = []
    if lines > LARGER_CLASSES.get(name, MAX_CLASS_LINES):
        wrong.append(f"{lines} lines")
    if public > MORE_METHODS.get(name, MAX_PUBLIC_METHODS):
        wrong.append(f"{public} public methods")
    return f"{name}: {' and '.join(wrong)}" if wrong else ""


def test_cpp_functions_fit_in_the_head() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {head}: {lines} lines"
        for path in cpp_sources()
        for head, lines in cpp_functions(path.read_text())
        if lines > LARGER_FUNCTIONS.get(re.sub(r"\(.*", "", head).split()[-1], MAX_FUNCTION_LINES)
    ]
    assert not wrong, "\n".join(wrong)


def test_cpp_classes_have_one_responsibility() -> None:
    size, public = cpp_classes([path.read_text() for path in cpp_sources()])
    wrong = [text for name in size if (text := too_large(name, size[name], public[name]))]
    assert not wrong, "\n".join(wrong)


def test_python_classes_have_one_responsibility() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for name, lines, public in python_classes(ast.parse(path.read_text()))
        if (text := too_large(name, lines, public))
    ]
    assert not wrong, "\n".join(wrong)


def test_what_has_become_small_is_no_exception_any_more() -> None:
    size, public = cpp_classes([path.read_text() for path in cpp_sources()])
    for path in (ROOT / "src").rglob("*.py"):
        for name, lines, _ in python_classes(ast.parse(path.read_text())):
            size[name] = max(size[name], lines)
    assert [name for name in LARGER_CLASSES if size[name] <= MAX_CLASS_LINES] == []
    assert [name for name in MORE_METHODS if public[name] <= MAX_PUBLIC_METHODS] == []


def test_the_measures_are_right() -> None:
    text = """namespace n {
class A : public B {
 public:
  explicit A(int x) : x_(x) {}
  // not this (one)
  int f(int a,
        int b) const;
  void g() {
    h();
  }

 private:
  void h();
  int x_ = 0;
};

int A::f(int a,
         int b) const {
  if (a) {
    return b;
  }
  return a;
}
}  // namespace n
"""
    size, public = cpp_classes([text])
    assert (size["A"], public["A"]) == (14 + 7, 3)
    assert list(cpp_functions(text)) == [("void g() {", 3), ("int A::f(int a,", 7)]
    (found,) = python_classes(ast.parse("class A:\n    def f(self): ...\n    def _g(self): ...\n"))
    assert found == ("A", 3, 1)
    assert too_large("A", MAX_CLASS_LINES, MAX_PUBLIC_METHODS) == ""
    assert too_large("A", MAX_CLASS_LINES + 1, 0) == f"A: {MAX_CLASS_LINES + 1} lines"
