"""DeepEP's later interfaces on the throughput kernels: those of V2, of V2.5, and hybrid-ep's."""

from uccl_ep.elastic.base import BufferAllocator as BufferAllocator
from uccl_ep.elastic.bucket import BucketBuffer as BucketBuffer
from uccl_ep.elastic.buffer import ElasticBuffer as ElasticBuffer
from uccl_ep.elastic.ep_buffer import EPBuffer as EPBuffer
from uccl_ep.elastic.handle import EPHandle as EPHandle
from uccl_ep.elastic.hybrid import HybridEPBuffer as HybridEPBuffer
