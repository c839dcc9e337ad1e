"""The state of the house in numbers: python tools/structure.py [--list]

Lines per file, test lines per line of code, public functions and classes without a full docstring, and runs of equal
lines in two places. A docstring is full when it is there, when it names the errors that the body raises, and when it
says the shape or the kind of what it takes or returns where tensors are in the signature of a module's function. What a
Protocol of the same room describes need not be described again where it is implemented.
"""

import argparse
import ast
import io
import re
import statistics
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 250  # lines of a file
SAME = 6  # lines of code that may be equal in two places
SHAPE = re.compile(
    r"\(\*?[A-Za-z0-9_ ,*.]*\)|shape|scalar|matri|vector|tensor|stack|dict|bits|weights|parameters|gradient"
)


def public(tree: ast.Module) -> Iterator[tuple[str, ast.AST, bool]]:
    """(dotted name, node, whether it is a method) of all public functions and classes; those in functions are not."""

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.AST, bool]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith(
                "_"
            ):
                yield prefix + node.name, node, bool(prefix)
                if isinstance(node, ast.ClassDef):
                    yield from walk(node.body, f"{prefix}{node.name}.")

    return walk(tree.body, "")


def faults(node: ast.AST, method: bool) -> str | None:
    """What a docstring lacks, or None."""
    text = ast.get_docstring(node)
    if not text:
        return "no docstring"
    if isinstance(node, ast.ClassDef):
        return None
    raised = {name for name in map(error_name, ast.walk(node)) if name}
    if missing := sorted(name for name in raised if name not in text):
        return f"raises {', '.join(missing)} and does not say so"
    hints = [a.annotation for a in node.args.args if a.annotation] + ([node.returns] if node.returns else [])
    tensors = any(re.search(r"\bTensor\b", ast.unparse(h)) for h in hints)
    if tensors and not method and not SHAPE.search(text):
        return "does not say the shape of a tensor"
    return None


def error_name(node: ast.AST) -> str | None:
    """The class that a `raise` makes; None for one that passes an error on, or only ends a command."""
    if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call) or not isinstance(node.exc.func, ast.Name):
        return None
    return None if node.exc.func.id in ("SystemExit", "AssertionError") else node.exc.func.id


def promised(trees: list[ast.Module]) -> set[str]:
    """Names of methods that a Protocol describes."""
    classes = [n for tree in trees for n in tree.body if isinstance(n, ast.ClassDef)]
    protocols = [n for n in classes if any(ast.unparse(base) == "Protocol" for base in n.bases)]
    return {m.name for n in protocols for m in n.body if isinstance(m, ast.FunctionDef) and ast.get_docstring(m)}


def incomplete(room: Path) -> tuple[int, list[str]]:
    """How many public names a folder has, and `file:line name: what is missing` of each that is not fully described.

    A folder below it is a room of its own.
    """
    files = sorted(room.glob("*.py"))
    trees = [ast.parse(f.read_text(encoding="utf-8")) for f in files]
    known, total, found = promised(trees), 0, []
    for file, tree in zip(files, trees, strict=True):
        for name, node, method in public(tree):
            total += 1
            fault = faults(node, method)
            if fault and not (method and fault == "no docstring" and name.rpartition(".")[2] in known):
                found.append(f"{file.relative_to(ROOT).as_posix()}:{node.lineno} {name}: {fault}")
    return total, found


def rooms() -> list[Path]:
    """Every folder of code."""
    return sorted({f.parent for f in (ROOT / "src").rglob("*.py")})


def lines_of(folder: Path) -> dict[str, int]:
    """Lines of every Python file below a folder, by path."""
    files = sorted(folder.rglob("*.py"))
    return {f.relative_to(ROOT).as_posix(): len(f.read_text(encoding="utf-8").splitlines()) for f in files}


def code_lines(file: Path) -> list[tuple[int, str]]:
    """(number, text) of the lines with code; comments, docstrings, imports, lone brackets and parameters left out.

    Equal parameters of two functions are one habit, not one piece of work.
    """
    source = file.read_text(encoding="utf-8")
    skip = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING and token.start[0] != token.end[0]:
            skip |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            skip |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.FunctionDef):  # its parameters, where they stand on lines of their own
            skip |= {a.lineno for a in ast.walk(node.args) if isinstance(a, ast.arg)} - {node.lineno}
    kept = []
    for number, line in enumerate(source.splitlines(), start=1):
        text = line.partition("  # ")[0].strip()
        if number not in skip and len(text) > 3 and not text.startswith(("#", '"""')):
            kept.append((number, text))
    return kept


def twice(folder: Path, size: int = SAME) -> list[str]:
    """Places where `size` lines of code in a row are equal, the longest runs once: `a.py:10 = b.py:20`."""
    windows = defaultdict(list)
    for file in sorted(folder.rglob("*.py")):
        kept = code_lines(file)
        for i in range(len(kept) - size + 1):
            place = f"{file.relative_to(ROOT).as_posix()}:{kept[i][0]}"
            windows[tuple(text for _, text in kept[i : i + size])].append((place, i))
    found, last = [], set()
    for places in windows.values():
        if len(places) < 2:
            continue
        here = {(p.rpartition(":")[0], i) for p, i in places}
        if not {(f, i - 1) for f, i in here} <= last:
            found.append(" = ".join(p for p, _ in places))
        last |= here
    return found


def main() -> None:
    """Print the numbers, and with --list every name that is not fully described."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="name every public name that is not fully described")
    listed = parser.parse_args().list
    code, tests = lines_of(ROOT / "src"), lines_of(ROOT / "tests")
    longest = max(code, key=code.get)
    described = {room: incomplete(room) for room in rooms()}
    print(f"code: {len(code)} files, {sum(code.values())} lines, median {statistics.median(code.values()):g}")
    print(f"longest: {longest}, {code[longest]} lines")
    print(f"over {LIMIT} lines: {', '.join(n for n, k in code.items() if k > LIMIT) or 'none'}")
    ratio = sum(tests.values()) / sum(code.values())
    print(f"tests: {len(tests)} files, {sum(tests.values())} lines, {ratio:.2f} a line of code")
    lacking = sum(len(found) for _, found in described.values())
    print(f"public names: {sum(total for total, _ in described.values())}, not fully described: {lacking}")
    for room, (total, found) in described.items():
        if found:
            print(f"  {room.relative_to(ROOT).as_posix()}: {len(found)} of {total}")
            print(*(f"    {fault}" for fault in found if listed), sep="\n", end="\n" if listed else "")
    same = twice(ROOT / "src")
    print(f"{SAME} equal lines of code in two places: {len(same)}", *same, sep="\n  ")


if __name__ == "__main__":
    main()
