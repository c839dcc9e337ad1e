"""The process that runs math-verify: `python -m lowcomm.tasks.judge`, one JSON object a line, in and out.

A process of its own because an answer can take algebra minutes or gigabytes, because math-verify's own limit works in
a main thread only, and because sympy's caches grow with every call.
"""

import json
import logging
import re
import resource
import sys

MEMORY = 4 << 30  # bytes of address space


def same(gold: str, answer: str) -> bool:
    """math-verify's verdict on two boxed answers, gold first: for intervals and inequalities it is asymmetric.

    Its numbers are rounded to six places after the point, so 2^-99 would equal 2^-98; where both are numbers, they must
    also agree to five significant digits.
    """
    from math_verify import parse, verify

    a = parse(boxed(gold), parsing_timeout=None)
    b = parse(boxed(answer), parsing_timeout=None)
    return bool(verify(a, b, timeout_seconds=None)) and not far_apart(a, b)


def boxed(answer: str) -> str:
    r"""`\sqrt(2)` would be read as a root of nothing."""
    return "\\boxed{" + re.sub(r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", answer) + "}"


def far_apart(gold: list, answer: list) -> bool:
    """Whether both parsed answers are numbers that differ by more than 1e-5 of the larger one."""
    numbers = [x[0] for x in (gold, answer) if x and getattr(x[0], "is_number", False)]  # of sympy's expressions
    if len(numbers) < 2 or numbers[0] == numbers[1]:  # infinity too is equal to itself
        return False
    a, b = (x.evalf(30) for x in numbers)
    return bool(abs(a - b) > 1e-5 * max(abs(a), abs(b)))


def main() -> None:
    """Say "ready", then give a verdict for each line: "verified", "refuted" or "error"."""
    logging.disable(logging.CRITICAL)  # math-verify warns that it has no time limit: the parent has one
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    same("1", "2")  # the imports and the first parse take seconds, which are no answer's
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        pair = json.loads(line)
        try:
            verdict = "verified" if same(pair["gold"], pair["answer"]) else "refuted"
        except Exception:  # whatever sympy raises, MemoryError too: it is counted, and never correct
            verdict = "error"
        print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main()
