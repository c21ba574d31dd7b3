"""The parts of V2 that upstream calls experimental: named here, so that a caller is told instead of puzzled."""

from __future__ import annotations

from typing import Any, NoReturn

from uccl_ep.errors import NotSupported


def _refusal(group: str, name: str) -> Any:
    def method(self: Any, *arguments: Any, **keywords: Any) -> NoReturn:
        raise NotSupported(f"ElasticBuffer.{name}: {group} is experimental in DeepEP and not part of uccl_ep")

    method.__name__ = name
    method.__doc__ = f"Not part of uccl_ep ({group}).\n\nRaises:\n    NotSupported: always."
    return method


class ExperimentalApi:
    """What ElasticBuffer inherits: each raises NotSupported."""

    get_engram_storage_size_hint = _refusal("Engram", "get_engram_storage_size_hint")
    engram_write = _refusal("Engram", "engram_write")
    engram_fetch = _refusal("Engram", "engram_fetch")
    get_pp_buffer_size_hint = _refusal("pipeline send and receive", "get_pp_buffer_size_hint")
    pp_set_config = _refusal("pipeline send and receive", "pp_set_config")
    pp_send = _refusal("pipeline send and receive", "pp_send")
    pp_recv = _refusal("pipeline send and receive", "pp_recv")
    get_agrs_num_max_session_bytes = _refusal("all-gather", "get_agrs_num_max_session_bytes")
    get_agrs_buffer_size_hint = _refusal("all-gather", "get_agrs_buffer_size_hint")
    agrs_set_config = _refusal("all-gather", "agrs_set_config")
    create_agrs_session = _refusal("all-gather", "create_agrs_session")
    destroy_agrs_session = _refusal("all-gather", "destroy_agrs_session")
    agrs_new_session = _refusal("all-gather", "agrs_new_session")
    agrs_get_inplace_tensor = _refusal("all-gather", "agrs_get_inplace_tensor")
    all_gather = _refusal("all-gather", "all_gather")
