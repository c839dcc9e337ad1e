"""A tokenizer without a file: a token a character, with or without a chat template."""


class Characters:
    """What prompts and evaluation need of a Hugging Face tokenizer."""

    def __init__(self, chat_template: str | None = None):
        self.chat_template = chat_template

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return ([2] if add_special_tokens and self.chat_template else []) + [ord(char) for char in text]

    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(chr(token) for token in tokens if token != 2)

    def apply_chat_template(self, messages: list[dict], add_generation_prompt: bool = False, tokenize: bool = False):
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment()
        environment.globals["raise_exception"] = refuse
        template = environment.from_string(self.chat_template)
        return template.render(messages=messages, add_generation_prompt=add_generation_prompt)


def refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


TURNS = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
# as Gemma's
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TURNS
DROPS_SYSTEM = "{% for m in messages if m['role'] != 'system' %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}"
