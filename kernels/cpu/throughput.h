// The throughput kernels as the library runs them on a CPU: with warps of one lane. These kernels spend their time on
// whole rows, which one lane copies or adds with vector instructions; the 31 others would only be switched to in order
// to meet it. The kernels are the same source; kernels/host/README.md has the widths.
#pragma once
#include "kernels/cpu/launch.h"
#include "kernels/launch/throughput.h"

namespace uccl::cpu {

// Each returns when its last block has ended; throws what simt::launch does.
void throughput_layout(const LayoutArgs& args, const Shape& shape);
void throughput_counts(const CountsArgs& args, const Shape& shape);
void throughput_dispatch(const DispatchArgs& args, const Shape& shape);
void throughput_combine(const CombineArgs& args, const Shape& shape);
void throughput_settle(const SettleArgs& args, const Shape& shape);

}  // namespace uccl::cpu
