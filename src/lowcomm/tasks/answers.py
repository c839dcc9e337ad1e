"""Answers as strings: the last box of a completion, and the equivalence that MATH has been scored with.

The normalisation follows the description of the scorer published with MATH (Hendrycks et al., arXiv 2103.03874): it
undoes ways of writing LaTeX and knows no algebra. Units, degrees, dollars, per cent signs and the name before an equals
sign are left out, so that 10\\% equals 10 and x=5 equals 5, as papers have scored it.
"""

import re

BOX = re.compile(r"\\f?box(?:ed)?(?![a-zA-Z])")
LONGEST = 256  # characters of an answer that is looked at with algebra
# What takes a computer algebra system without end: a factorial of a factorial or of a large number, an exponent of more
# than four digits, an exponent that has an exponent or a factorial.
HEAVY = re.compile(r"!\s*[)}\]]*\s*!|\d{5,}\s*!|\^\s*\{?\s*[-+]?\s*\d{5,}|\^\s*\{[^{}]*[\^!]|\^\s*\(?\w+\)?\s*[\^!]")
ELLIPSIS = re.compile(r"\\[lc]?dots|…|\.\.\.")
BASE = re.compile(r"(?<=\d)\s*_\s*\{?\s*(\d+|\\text\{\w+\})\s*\}?")
UNIT = re.compile(r"\\(?:text|mbox|mathrm)\{\s[^{}]*\}$")
NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
INTEGER = re.compile(r"-?\d+")


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{…}` or `\fbox{…}`, braces counted; `\boxed 5` gives `5`. None if there is none.

    A box that is never closed, as in a truncated completion, is none, and an earlier one does not stand in for it.
    """
    found = list(BOX.finditer(text))
    if not found:
        return None
    after = text[found[-1].end() :]
    rest = after.lstrip(" ")
    if not rest.startswith("{"):
        bare = re.match(r"[^\s$]+", rest) if rest != after else None
        return bare.group().rstrip(".,;:") if bare else None
    depth = 0
    for i, char in enumerate(rest):
        if char in "{}" and (i == 0 or rest[i - 1] != "\\"):
            depth += 1 if char == "{" else -1
            if depth == 0:
                return rest[1:i].strip()
    return None


def last_number(text: str) -> str | None:
    """The last decimal number of a text, thousands commas left out."""
    found = NUMBER.findall(re.sub(r"(?<=[\d)])\s*[-−](?=\d)", " - ", text.replace("−", "-")))
    return found[-1].replace(",", "") if found else None


def normalised(answer: str) -> str:
    """The canonical string of an answer; two answers with equal strings are the same."""
    s = answer.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    s = s.replace("\\tfrac", "\\frac").replace("\\dfrac", "\\frac").replace("\\left", "").replace("\\right", "")
    s = re.sub(r"\^\s*(\{\s*\\circ\s*\}|\\circ)", "", s).replace("\\$", "").replace("$", "")
    s = UNIT.sub("", s.strip()).replace("\\%", "").replace("%", "").strip().removesuffix(".")
    s = re.sub(r"(^|[^\d.])\.(?=\d)", r"\g<1>0.", s)
    left, equals, right = s.partition("=")
    if equals and "=" not in right and len(left.strip()) <= 2:
        s = right
    s = re.sub(r"\\sqrt\s*([^\s{\[(\\])", r"\\sqrt{\1}", s).replace(" ", "")
    s = fractions(s)
    if s == "0.5":
        s = "\\frac{1}{2}"
    if ratio := re.fullmatch(r"(-?)(\d+)/(\d+)", s):
        s = f"{ratio[1]}\\frac{{{ratio[2]}}}{{{ratio[3]}}}"
    return s


def fractions(s: str) -> str:
    r"""`\frac12`, `\frac1{72}` and `\frac{1}2` with both braces."""
    out, rest = "", s
    while (at := rest.find("\\frac")) >= 0:
        out, rest = out + rest[: at + 5], rest[at + 5 :]
        for _ in range(2):
            if rest[:1].isalnum():
                out, rest = f"{out}{{{rest[0]}}}", rest[1:]
            elif (end := closing(rest)) is not None:
                out, rest = out + "{" + fractions(rest[1:end]) + "}", rest[end + 1 :]
            else:
                break
    return out + rest


def closing(s: str) -> int | None:
    """Place of the brace that closes the one at the beginning of `s`."""
    depth = 0
    for i, char in enumerate(s if s.startswith("{") else ""):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return i
    return None


def by_string(gold: str, answer: str) -> bool | None:
    """Whether two answers are the same, where strings decide it; None where algebra has to.

    Long ones, as a model that repeats itself writes them, are the same only letter by letter.
    """
    if max(len(gold), len(answer)) > LONGEST:
        return True if gold.strip() == answer.strip() else None
    a, b = normalised(gold), normalised(answer)
    if a == b:
        return True
    if INTEGER.fullmatch(a) and INTEGER.fullmatch(b):
        return int(a) == int(b)
    return None


def guarded(gold: str, answer: str) -> bool:
    """Pairs that algebra would not end with, or would be wrong about: they are not the same unless their strings are.

    math-verify 0.9 ignores the base of a number and compares sequences by their first and last members.
    """
    if max(len(gold), len(answer)) > LONGEST or HEAVY.search(gold) or HEAVY.search(answer):
        return True
    if ELLIPSIS.search(gold) or ELLIPSIS.search(answer):
        return True
    return BASE.findall(gold) != BASE.findall(answer)
