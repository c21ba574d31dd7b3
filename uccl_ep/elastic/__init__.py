"""DeepEP's later interfaces on the throughput kernels: V2's `ElasticBuffer`, V2.5's `EPBuffer`, `HybridEPBuffer`."""

from uccl_ep.elastic.buffer import ElasticBuffer as ElasticBuffer
from uccl_ep.elastic.ep_buffer import EPBuffer as EPBuffer
from uccl_ep.elastic.handle import EPHandle as EPHandle
from uccl_ep.elastic.hybrid import HybridEPBuffer as HybridEPBuffer
