"""Prompts: how a question becomes token ids, in the styles that public recipes use.

A style with a conversation uses the tokenizer's chat template; where it has none (base models) the parts are joined by
blank lines. Where a template refuses the system role (Gemma), the system message goes before the user's.
"""

from collections.abc import Sequence
from typing import Any

from lowcomm.tasks.problem import Problem

BOX = "Please reason step by step, and put your final answer within \\boxed{}."
R1 = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The Assistant "
    "first thinks about the reasoning process in the mind and then provides the User with the answer. The reasoning "
    "process is enclosed within <think> </think> and the answer within <answer> </answer> tags, the final result in "
    "\\boxed{{}}.\nUser: {question}\nAssistant: <think>"
)
LLAMA3 = (
    "Solve the following math problem efficiently and clearly:\n\n"
    "- For simple problems (2 steps or fewer):\nProvide a concise solution with minimal explanation.\n\n"
    "- For complex problems (3 steps or more):\nUse this step-by-step format:\n\n"
    "## Step 1: [Concise description]\n[Brief explanation and calculations]\n\n"
    "## Step 2: [Concise description]\n[Brief explanation and calculations]\n\n...\n\n"
    "Regardless of the approach, always conclude with:\n\n"
    "Therefore, the final answer is: $\\boxed{{answer}}$. I hope it is correct.\n\n"
    "Where [answer] is just the final number or expression that solves the problem.\n\nProblem: {question}"
)
CODE = "{question}\n\nAnswer with one block of Python code between ```python and ```."
SHOTS = (("What is 4 + 2?", "\\boxed{6}"), ("What is 14 - 9?", "\\boxed{5}"), ("What is 3 * 20?", "\\boxed{60}"))
# style: (system message or None, user message); of "r1" and "none" the text itself, with no template
CHATS = {
    "boxed_user": (None, "{question}\nPut your final answer within \\boxed{{}}."),
    "boxed_system": ("Put your final answer within \\boxed{}.", "{question}"),
    "qwen25-math-cot": (BOX, "{question}"),
    "llama3": (None, LLAMA3),
    "number": ("Answer with the number only.", "{question}"),
    "code": (None, CODE),
    "boxed_shots": (None, "{question}"),  # after SHOTS
}
TEXTS = {"r1": R1, "none": "{question}\n"}
STYLES = (*CHATS, *TEXTS)


def render(style: str, tokenizer: Any, question: str) -> list[int]:
    """Token ids of the prompt, with what the template puts before the answer. Raises ValueError on an unknown style."""
    if style not in STYLES:
        raise ValueError(f"prompt.style={style}: one of {', '.join(STYLES)}")
    if style in TEXTS:
        return tokenizer.encode(TEXTS[style].format(question=question))
    system, user = CHATS[style]
    user, shots = user.format(question=question), SHOTS if style == "boxed_shots" else ()
    if not tokenizer.chat_template:
        parts = [system, *(f"{asked}\n{answer}" for asked, answer in shots), user]
        return tokenizer.encode("\n\n".join(part for part in parts if part) + "\n")
    if system and not takes_system(tokenizer):
        system, user = None, f"{system}\n\n{user}"
    turns = [("system", system)] if system else []
    turns += [turn for asked, answer in shots for turn in (("user", asked), ("assistant", answer))]
    messages = [{"role": role, "content": content} for role, content in (*turns, ("user", user))]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer.encode(text, add_special_tokens=False)  # the template has written them


def takes_system(tokenizer: Any) -> bool:
    """Whether the template renders a system message as a turn; Gemma's raise an error or leave it out."""
    word = "lowcomm-probe"
    messages = [{"role": "system", "content": word}, {"role": "user", "content": "x"}]
    try:
        return word in tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # the template's own; any other comes again when the prompt is rendered
        return False


def rendered(
    problems: Sequence[Problem], style: str, tokenizer: Any, max_tokens: int
) -> tuple[list[tuple[Problem, list[int]]], int]:
    """The problems with their prompts, and how many were left out because their prompt is longer than `max_tokens`.

    Raises ValueError when none is left.
    """
    pairs = [(problem, render(style, tokenizer, problem.question)) for problem in problems]
    kept = [(problem, ids) for problem, ids in pairs if len(ids) <= max_tokens]
    if not kept:
        shortest = min(len(ids) for _, ids in pairs)
        raise ValueError(f"prompt.max_tokens={max_tokens}: the shortest prompt has {shortest}; raise it")
    return kept, len(pairs) - len(kept)


def plain_text(question: str, answer: str) -> str:
    r"""A problem and its answer as text to pretrain on: the prompt of style "none", then the box."""
    return TEXTS["none"].format(question=question) + f"\\boxed{{{answer}}}"
