"""A small Qwen3-MoE that has learned one text by heart, and a tokenizer of bytes, in the files that a server loads.

Learned, not drawn: with random weights two tokens are nearly tied now and then, and one rounding more or less decides.
Run by an integrator's Python: `python -m tests.integrations.serving.model FOLDER`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

TEXT = (
    "A kernel writes a command into a ring in host memory. A proxy posts it as a write with immediate data. The proxy "
    "that receives it restores the order, so networks that keep none work too. A row crosses the network once for each "
    "node, and each node adds up what its experts made of it. "
)
HIDDEN, EXPERTS, TOPK = 256, 8, 2
VOCABULARY = 257  # bytes, and one that ends a text
_STEPS, _BATCH, _WINDOW, _LEARNING_RATE = 160, 8, 96, 2e-3


def learned() -> Any:
    """The model, after some seconds of learning from a seed."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, moe_intermediate_size=128, num_experts=EXPERTS, num_experts_per_tok=TOPK, norm_topk_prob=True,
        max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=None, eos_token_id=VOCABULARY - 1,
        pad_token_id=None,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config)
    text = torch.tensor(list((TEXT * 3).encode()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, weight_decay=0.0)
    for _ in range(_STEPS):
        starts = torch.randint(len(text) - _WINDOW, (_BATCH,)).tolist()
        tokens = torch.stack([text[start : start + _WINDOW] for start in starts])
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss after {_STEPS} steps: {loss.item():.3f}")
    return model.to(torch.bfloat16)


def tokenizer() -> Any:
    """Each byte is a token, and its number is the byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {letter: byte for byte, letter in enumerate(letters())} | {"<end>": VOCABULARY - 1}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")


def letters() -> list[str]:
    """How a tokenizer of bytes writes each byte: those that are not printed have letters from 256 on."""
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printed else next(others)) for byte in range(256)]


def main(folder: Path) -> None:
    learned().save_pretrained(folder)
    tokenizer().save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
