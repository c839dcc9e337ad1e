"""Prompts: what each style asks, system messages where there is no such role, prompts that are too long."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lowcomm.tasks import Problem
from lowcomm.tasks.prompts import SHOTS, STYLES, plain_text, render, rendered
from tests.tasks.words import DROPS_SYSTEM, NO_SYSTEM, TURNS, Characters

CONF = Path(__file__).parents[2] / "conf/rl/prompt"
QUESTION = "What is {3} + 8?"  # braces in a question are its own


def text(style: str, template: str | None) -> str:
    tokenizer = Characters(template)
    return tokenizer.decode(render(style, tokenizer, QUESTION))


@pytest.mark.parametrize("template", [None, TURNS, NO_SYSTEM, DROPS_SYSTEM])
@pytest.mark.parametrize("style", STYLES)
def test_every_style_shows_the_question_once(style, template):
    found = text(style, template)
    assert found.count(QUESTION) == 1
    assert "{{" not in found
    assert "}}" not in found


def test_conversations():
    asked = "Put your final answer within \\boxed{}."
    assert text("boxed_user", TURNS) == f"<user>{QUESTION}\n{asked}</><assistant>"
    assert text("boxed_system", TURNS) == f"<system>{asked}</><user>{QUESTION}</><assistant>"
    assert text("none", TURNS) == QUESTION + "\n"
    assert text("r1", TURNS).endswith(f"User: {QUESTION}\nAssistant: <think>")
    assert "<user>" not in text("r1", TURNS)
    shots = "".join(f"<user>{asked}</><assistant>{answer}</>" for asked, answer in SHOTS)
    assert text("boxed_shots", TURNS) == f"{shots}<user>{QUESTION}</><assistant>"


@pytest.mark.parametrize("template", [NO_SYSTEM, DROPS_SYSTEM])
@pytest.mark.parametrize("style", ["boxed_system", "qwen25-math-cot", "number"])
def test_system_message_goes_to_the_user_where_there_is_no_such_role(style, template):
    """Gemma's templates raise an error, or leave the message out without a word."""
    system, user = text(style, TURNS).removeprefix("<system>").removesuffix("</><assistant>").split("</><user>")
    assert text(style, template).startswith(f"<user>{system}\n\n{user}</>")


def test_llama_evaluation_has_no_system_role():
    assert "<system>" not in text("llama3", TURNS)


def test_without_a_template_the_parts_are_joined():
    assert text("number", None) == f"Answer with the number only.\n\n{QUESTION}\n"
    assert text("boxed_shots", None).startswith(f"{SHOTS[0][0]}\n{SHOTS[0][1]}\n\n")


def test_special_tokens_are_written_once():
    """The template has written the first token; a bare text gets it from the tokenizer."""
    assert render("boxed_user", Characters(TURNS), "x")[0] == ord("<")
    assert render("none", Characters(TURNS), "x")[0] == 2


def test_pretraining_text_begins_with_the_prompt():
    assert plain_text("What is 3 + 8?", "11") == "What is 3 + 8?\n\\boxed{11}"
    assert plain_text(QUESTION, "11").startswith(text("none", None))


def test_long_prompts_are_left_out_and_counted():
    problems = [Problem(str(n), "x" * n, "1", 1, "") for n in (900, 5, 6)]
    kept, left_out = rendered(problems, "none", Characters(), 7)
    assert ([p.id for p, _ in kept], left_out) == (["5", "6"], 1)
    assert kept[0][1] == [ord("x")] * 5 + [ord("\n")]
    with pytest.raises(ValueError, match=r"prompt.max_tokens=5: the shortest prompt has 6; raise it"):
        rendered(problems, "none", Characters(), 5)


def test_unknown_style():
    with pytest.raises(ValueError, match="prompt.style=boxed: one of boxed_user"):
        render("boxed", Characters(), "x")


def test_a_file_for_every_style():
    files = {file.stem: OmegaConf.load(file) for file in CONF.glob("*.yaml")}
    assert {name: cfg.style for name, cfg in files.items()} == {style: style for style in STYLES}
    assert all(set(cfg) == {"style", "max_tokens"} for cfg in files.values())
