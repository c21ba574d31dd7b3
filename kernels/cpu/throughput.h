// The throughput kernels as the library runs them on a CPU: with warps of one lane. These kernels spend their time on
// whole rows, which one lane copies or adds with vector instructions; the 31 others would only be switched to in order
// to meet it. The kernels are the same source; kernels/host/README.md has the widths.
#pragma once
#include "kernels/cpu/launch.h"
#include "kernels/throughput/combine.h"
#include "kernels/throughput/counts.h"
#include "kernels/throughput/dispatch.h"
#include "kernels/throughput/layout.h"
#include "kernels/throughput/settle.h"

namespace uccl::cpu {

// Each returns when its last block has ended; throws what simt::launch does.
void throughput_layout(const LayoutArgs& args, const Launch& launch);
void throughput_counts(const CountsArgs& args, const Launch& launch);
void throughput_dispatch(const DispatchArgs& args, const Launch& launch);
void throughput_combine(const CombineArgs& args, const Launch& launch);
void throughput_settle(const SettleArgs& args, const Launch& launch);

}  // namespace uccl::cpu
