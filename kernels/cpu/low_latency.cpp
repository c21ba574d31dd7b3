// Instantiates the low-latency kernels at the width that this library is compiled with (cmake/libraries.cmake: 1).
#include "kernels/cpu/low_latency.h"

namespace uccl::cpu {

static_assert(simt::kWarp == 1);

void low_latency_dispatch_recv(const DispatchReceiveArgs& args, const Shape& shape) {
  run(uccl::low_latency_dispatch_recv, args, shape);
}
void low_latency_combine_send(const CombineSendArgs& args, const Shape& shape) {
  run(uccl::low_latency_combine_send, args, shape);
}
void low_latency_combine_reduce(const CombineReduceArgs& args, const Shape& shape) {
  run(uccl::low_latency_combine_reduce, args, shape);
}
void low_latency_combine_recv(const CombineReceiveArgs& args, const Shape& shape) {
  run(uccl::low_latency_combine_recv, args, shape);
}

}  // namespace uccl::cpu
