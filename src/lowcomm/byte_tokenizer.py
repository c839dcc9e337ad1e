"""A tokenizer that needs no training: one token a byte, and the two special ones that generation needs."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

EOS, PAD = "<|endoftext|>", "<|pad|>"
SIZE = 258


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Ids 0 (end of text), 1 (padding), 2 to 257 (bytes). Every text can be encoded; no BOS, no chat template."""
    entries = [EOS, PAD, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={entry: i for i, entry in enumerate(entries)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (EOS, PAD)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD, padding_side="left", clean_up_tokenization_spaces=False
    )
