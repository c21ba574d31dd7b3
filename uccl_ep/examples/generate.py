"""Greedy generation by a mixture of experts over ranks: prefill by throughput mode, decoding by low-latency mode.

    torchrun --nproc-per-node 4 -m uccl_ep.examples.generate --architecture deepseek-v3 [--fp8]

Each rank has prompts of its own and shares its experts with the others. Afterwards it generates again with the whole
model in one process (one_process.py), by transformers' own `generate`, and compares.
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed

from uccl_ep.examples.expert_parallel import ExpertParallel, make_buffer
from uccl_ep.examples.moe_model import ARCHITECTURES, EXPERTS, HIDDEN, VOCABULARY, make_model, set_mode, spread
from uccl_ep.examples.one_process import in_one_process

BATCH, PROMPT, SEED = 2, 24, 3


@dataclass(frozen=True)
class Comparison:
    """What a rank generated beside what one process generates.

    Attributes:
        tokens, wanted: int64 [B, new tokens].
        logits_error: how far the logits are from those of the unchanged model, which rounds nothing, when both read the
            one-process text: the norm of the difference as a share.
    """

    tokens: Tensor
    wanted: Tensor
    logits_error: float

    @property
    def identical(self) -> bool:
        return torch.equal(self.tokens, self.wanted)


@torch.no_grad()
def generate(model: Any, layers: list[ExpertParallel], prompt: Tensor, new_tokens: int) -> Tensor:
    """int64 [B, P] -> the new tokens [B, new_tokens]; every rank must ask for as many."""
    set_mode(layers, "throughput")
    output = model(prompt, use_cache=True)
    set_mode(layers, "low_latency")
    tokens = [output.logits[:, -1].argmax(-1, keepdim=True)]
    while len(tokens) < new_tokens:
        output = model(tokens[-1], past_key_values=output.past_key_values, use_cache=True)
        tokens.append(output.logits[:, -1].argmax(-1, keepdim=True))
    return torch.cat(tokens, dim=1)


@torch.no_grad()
def compare(group: Any, architecture: str, new_tokens: int, ranks_per_node: int, fp8: bool = False) -> Comparison:
    """Generates on all ranks of the group, and by itself in this process."""
    whole = make_model(architecture, SEED)
    draw = torch.Generator().manual_seed(SEED + 1 + group.rank())
    prompt = torch.randint(0, VOCABULARY, (BATCH, PROMPT), generator=draw)

    buffer = make_buffer(group, HIDDEN, EXPERTS, max_decode_tokens=BATCH)
    model = copy.deepcopy(whole)
    layers = spread(model, buffer, max_decode_tokens=BATCH, fp8=fp8)
    tokens = generate(model, layers, prompt, new_tokens)

    alone = copy.deepcopy(whole)
    in_one_process(alone, group.size(), ranks_per_node, max_decode_tokens=BATCH)
    text = alone.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=new_tokens, use_cache=True
    )
    set_mode(layers, "throughput")
    logits, unrounded = model(text).logits, whole(text).logits
    distributed.barrier(group)  # nobody leaves while others may still read its rows
    buffer.destroy()
    return Comparison(tokens, text[:, PROMPT:], float((logits - unrounded).norm() / unrounded.norm()))


def main() -> int:
    """One rank of the command line; 0 when the text is the same; with FP8 it may differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", choices=ARCHITECTURES, default=ARCHITECTURES[0])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--ranks-per-node", type=int, default=0, help="as UCCL_EP_RANKS_PER_NODE (default: all)")
    parser.add_argument("--fp8", action="store_true", help="rows travel to the experts as FP8")
    options = parser.parse_args()
    torch.set_num_threads(1)  # ranks share the cores
    distributed.init_process_group("gloo")
    per_node = options.ranks_per_node or distributed.get_world_size()
    found = compare(distributed.group.WORLD, options.architecture, options.new_tokens, per_node, options.fp8)
    same = int((found.tokens == found.wanted).sum())
    print(
        f"rank {distributed.get_rank()}: {same} of {found.wanted.numel()} tokens as in one process; logits differ by "
        f"{found.logits_error:.2g} from those of the unchanged model",
        flush=True,
    )
    distributed.destroy_process_group()
    return 0 if found.identical or options.fp8 else 1


if __name__ == "__main__":
    raise SystemExit(main())
