"""What is read off a run of `lowcomm.rl`: whether it learned, by its first and last answers to the same problems.

From `outcome.paired`: greedy answers of the weights before the first step and after the last.
"""

from collections.abc import Callable
from typing import Any

Outcome = dict[str, Any]
Reading = Callable[[Outcome, Outcome | None], float | None]


def paired(name: str, factor: float = 1.0) -> Reading:
    """A value of the paired test, times a factor."""
    return lambda outcome, _: outcome["paired"][name] * factor


def gained(outcome: Outcome, _: Outcome | None) -> float:
    """Percentage points of held-out accuracy, last minus first."""
    return 100 * (outcome["paired"]["after"] - outcome["paired"]["before"])


# name: title, unit, reading, lower is better, digits
FIELDS: dict[str, tuple[str, str, Reading, bool, int]] = {
    "gained_points": ("Held-out accuracy gained", "points", gained, False, 1),
    "paired_p": ("McNemar's exact test on the same problems, two-sided p", "1", paired("p"), True, 5),
    "accuracy_first_pct": ("Held-out accuracy before the first step", "%", paired("before", 100), False, 1),
    "accuracy_last_pct": ("Held-out accuracy after the last step", "%", paired("after", 100), False, 1),
}
