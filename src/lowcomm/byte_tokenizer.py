"""A tokenizer that needs no training: bytes, the frequent pieces of arithmetic problems, and two special tokens."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

EOS, PAD = "<|endoftext|>", "<|pad|>"
PIECES = ("What is ", " + ", " - ", " * ", "?\n", "\\boxed{")  # a generated problem takes 13 tokens instead of 30
SIZE = 2 + 256 + len(PIECES)


def byte_tokenizer() -> Tokenizer:
    """Ids 0 (end of text), 1 (padding), 2 to 257 (bytes), 258 to 263 (pieces); every digit is a token of its own.

    Every text can be encoded and comes back. No BOS.
    """
    entries = [EOS, PAD, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={entry: i for i, entry in enumerate(entries)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (EOS, PAD)])
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in PIECES])
    return tokenizer
