"""A tokenizer of 99 tokens, one a printable character, for random models: nothing to train, nothing to download."""

import string

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<end>", "<unk>")
CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"
TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] + ': ' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a: ' }}{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """Characters that it does not know become `<unk>`; answers end with `<end>` (id 1)."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<end>", unk_token="<unk>", padding_side="left"
    )
    made.chat_template = TEMPLATE
    return made
