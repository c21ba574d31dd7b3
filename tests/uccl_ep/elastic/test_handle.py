"""EPHandle: V2's field names, those that integrators read, and what upstream's kernels alone have."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from uccl_ep.elastic.handle import EPHandle

# As recorded in the contract, part C.4.
FIELDS = """
    do_expand num_experts expert_alignment num_max_tokens_per_rank num_sms topk_idx num_recv_tokens num_expanded_tokens
    num_recv_tokens_per_expert_list psum_num_recv_tokens_per_scaleup_rank psum_num_recv_tokens_per_expert
    num_unaligned_recv_tokens_per_expert recv_src_metadata dst_buffer_slot_idx token_metadata_at_forward
    channel_linked_list cached_recv_src_metadata_before_sort
"""


def test_handle_has_the_contracts_fields() -> None:
    names = {field.name for field in dataclasses.fields(EPHandle)} | set(vars(EPHandle))
    assert set(FIELDS.split()) <= names


def test_handle_expanded_rows_are_the_last_columns_of_the_metadata() -> None:
    metadata = torch.tensor([[17, 0, 4, -1], [33, 1, -1, -1]], dtype=torch.int32)
    nothing = torch.zeros(0, dtype=torch.int32)
    handle = EPHandle(True, 8, 1, 16, 20, nothing, 2, 5, [], nothing, nothing, nothing, metadata, nothing, None)
    assert handle.expanded_rows.tolist() == [[4, -1], [-1, -1]]
    assert handle.dst_buffer_slot_idx is None and "routing" not in repr(handle)
    assert handle == handle and handle != dataclasses.replace(handle)  # one handle is one dispatch


def test_handle_says_when_its_ids_were_changed() -> None:
    nothing, ids = torch.zeros(0, dtype=torch.int32), torch.zeros(4, 2, dtype=torch.int64)
    handle = EPHandle(False, 8, 1, 16, 20, ids, 0, 0, [], nothing, nothing, nothing, nothing, nothing, None)
    assert handle.topk_idx is ids
    ids[0, 0] = 5
    with pytest.raises(AssertionError, match="modified in place"):
        _ = handle.topk_idx
    with torch.inference_mode():
        unversioned = torch.zeros(4, 2, dtype=torch.int64)
    assert dataclasses.replace(handle, sent_topk_idx=unversioned).topk_idx is unversioned
