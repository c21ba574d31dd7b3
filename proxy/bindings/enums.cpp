// The enums and constants that Python reads out of shared memory and records, so that no number of them is written there a
// second time. A value that is not named here is a compiler's error: -Wswitch looks at every `name`.
#include "bindings/register.h"
#include "diag/event_ring.h"
#include "engine/departures.h"
#include "kernels/layout/low_latency.h"
#include "kernels/layout/rank_context.h"
#include "kernels/layout/topology.h"
#include "kernels/throughput/check.h"
#include "ring/layout.h"
#include "wire/control.h"

namespace nb = nanobind;

namespace uccl {
namespace {

constexpr const char* name(FaultKind v) {
  switch (v) {
    case FaultKind::kNone: return "NONE";
    case FaultKind::kTimeout: return "TIMEOUT";
    case FaultKind::kPeerLost: return "PEER_LOST";
    case FaultKind::kRingFull: return "RING_FULL";
    case FaultKind::kBadCommand: return "BAD_COMMAND";
    case FaultKind::kMismatch: return "MISMATCH";
    case FaultKind::kTransport: return "TRANSPORT";
    case FaultKind::kBadArrival: return "BAD_ARRIVAL";
    case FaultKind::kWithdrawn: return "WITHDRAWN";
  }
  return nullptr;
}

constexpr const char* name(WaitPhase v) {
  switch (v) {
    case WaitPhase::kNone: return "NONE";
    case WaitPhase::kRing: return "RING";
    case WaitPhase::kDispatchSend: return "DISPATCH_SEND";
    case WaitPhase::kDispatchReceive: return "DISPATCH_RECEIVE";
    case WaitPhase::kCombineSend: return "COMBINE_SEND";
    case WaitPhase::kCombineReceive: return "COMBINE_RECEIVE";
    case WaitPhase::kCounts: return "COUNTS";
    case WaitPhase::kBarrier: return "BARRIER";
    case WaitPhase::kStart: return "START";
    case WaitPhase::kStagingReuse: return "STAGING_REUSE";
    case WaitPhase::kTeardown: return "TEARDOWN";
    case WaitPhase::kComputeSignal: return "COMPUTE_SIGNAL";
    case WaitPhase::kCombineWeights: return "COMBINE_WEIGHTS";
    case WaitPhase::kCombineReduce: return "COMBINE_REDUCE";
    case WaitPhase::kCombineSums: return "COMBINE_SUMS";
    case WaitPhase::kBarrierSend: return "BARRIER_SEND";
  }
  return nullptr;
}

constexpr const char* name(DetailKind v) {
  switch (v) {
    case DetailKind::kNone: return "NONE";
    case DetailKind::kChannel: return "CHANNEL";
    case DetailKind::kLocalExpert: return "LOCAL_EXPERT";
    case DetailKind::kMismatchField: return "MISMATCH_FIELD";
    case DetailKind::kLayoutPart: return "LAYOUT_PART";
  }
  return nullptr;
}

constexpr const char* name(MismatchField v) {
  switch (v) {
    case MismatchField::kChannels: return "CHANNELS";
    case MismatchField::kExperts: return "EXPERTS";
    case MismatchField::kTopk: return "TOPK";
    case MismatchField::kRowBytes: return "ROW_BYTES";
    case MismatchField::kScaleBytes: return "SCALE_BYTES";
    case MismatchField::kHasIds: return "HAS_IDS";
    case MismatchField::kHasWeights: return "HAS_WEIGHTS";
    case MismatchField::kReceivedRows: return "RECEIVED_ROWS";
    case MismatchField::kMaxTokens: return "MAX_TOKENS";
    case MismatchField::kHidden: return "HIDDEN";
    case MismatchField::kRowFormat: return "ROW_FORMAT";
    case MismatchField::kCombineForm: return "COMBINE_FORM";
    case MismatchField::kCall: return "CALL";
    case MismatchField::kOrigin: return "ORIGIN";
    case MismatchField::kTag: return "TAG";
    case MismatchField::kDtype: return "DTYPE";
  }
  return nullptr;
}

constexpr const char* name(CallKind v) {
  switch (v) {
    case CallKind::kNone: return "NONE";
    case CallKind::kLowLatencyDispatch: return "LOW_LATENCY_DISPATCH";
    case CallKind::kLowLatencyCombine: return "LOW_LATENCY_COMBINE";
    case CallKind::kCachedDispatch: return "CACHED_DISPATCH";
    case CallKind::kCombine: return "COMBINE";
  }
  return nullptr;
}

constexpr const char* name(LayoutPart v) {
  switch (v) {
    case LayoutPart::kNone: return "NONE";
    case LayoutPart::kLacksRank: return "LACKS_RANK";
    case LayoutPart::kNamesRank: return "NAMES_RANK";
    case LayoutPart::kTokensPerRank: return "TOKENS_PER_RANK";
    case LayoutPart::kTokensPerNode: return "TOKENS_PER_NODE";
    case LayoutPart::kTokensPerExpert: return "TOKENS_PER_EXPERT";
  }
  return nullptr;
}

constexpr const char* name(Phase v) {
  switch (v) {
    case Phase::kDispatch: return "DISPATCH";
    case Phase::kCombine: return "COMBINE";
    case Phase::kCounts: return "COUNTS";
    case Phase::kSpare: return "SPARE";
    case Phase::kWeights: return "WEIGHTS";
    case Phase::kReduced: return "REDUCED";
    case Phase::kIdentity: return "IDENTITY";
  }
  return nullptr;
}

constexpr const char* name(ImmediateKind v) {
  switch (v) {
    case ImmediateKind::kArrive: return "ARRIVE";
    case ImmediateKind::kExpect: return "EXPECT";
    case ImmediateKind::kSequence: return "SEQUENCE";
    case ImmediateKind::kCredit: return "CREDIT";
    case ImmediateKind::kBarrier: return "BARRIER";
  }
  return nullptr;
}

constexpr const char* name(EventKind v) {
  switch (v) {
    case EventKind::kNone: return "NONE";
    case EventKind::kPopped: return "POPPED";
    case EventKind::kPosted: return "POSTED";
    case EventKind::kCompleted: return "COMPLETED";
    case EventKind::kArrival: return "ARRIVAL";
    case EventKind::kPublished: return "PUBLISHED";
    case EventKind::kStalled: return "STALLED";
    case EventKind::kFault: return "FAULT";
    case EventKind::kParted: return "PARTED";
    case EventKind::kBarrier: return "BARRIER";
  }
  return nullptr;
}

constexpr const char* name(PartReason v) {
  switch (v) {
    case PartReason::kEnded: return "ENDED";
    case PartReason::kConnection: return "CONNECTION";
    case PartReason::kGoodbye: return "GOODBYE";
    case PartReason::kLeftOut: return "LEFT_OUT";
  }
  return nullptr;
}

// The columns of a rank's statistics, under the names that Buffer.stats() gives them.
constexpr const char* name(PeerStat v) {
  switch (v) {
    case PeerStat::kRowsOut: return "ROWS_SENT";
    case PeerStat::kBytesOut: return "BYTES_SENT";
    case PeerStat::kRowsIn: return "ROWS_RECEIVED";
    case PeerStat::kBytesIn: return "BYTES_RECEIVED";
    case PeerStat::kWaitNs: return "WAIT_NS";
  }
  return nullptr;
}

constexpr const char* name(RowFormat v) {
  switch (v) {
    case RowFormat::kBf16: return "BF16";
    case RowFormat::kFp8: return "FP8";
    case RowFormat::kFp8Ue8m0: return "FP8_UE8M0";
    case RowFormat::kNvfp4: return "NVFP4";
    case RowFormat::kLogfmt: return "LOGFMT";
    case RowFormat::kMxfp8: return "MXFP8";
    case RowFormat::kNvfp4Row: return "NVFP4_ROW";
  }
  return nullptr;
}

// Values go from `first` on without a gap. In Python an enum.IntEnum.
template <class E>
void export_enum(nb::module_& m, const char* type, u32 first = 0) {
  nb::enum_<E> e(m, type, nb::is_arithmetic());
  for (u32 i = first; name(static_cast<E>(i)) != nullptr; ++i) e.value(name(static_cast<E>(i)), static_cast<E>(i));
}

}  // namespace

void register_enums(nb::module_& m) {
  export_enum<FaultKind>(m, "FaultKind");
  export_enum<WaitPhase>(m, "WaitPhase");
  export_enum<DetailKind>(m, "DetailKind");
  export_enum<MismatchField>(m, "MismatchField");
  export_enum<CallKind>(m, "CallKind");
  export_enum<LayoutPart>(m, "LayoutPart");
  export_enum<Phase>(m, "Phase");
  export_enum<ImmediateKind>(m, "ImmediateKind", 1);
  export_enum<EventKind>(m, "EventKind");
  export_enum<PartReason>(m, "PartReason");
  export_enum<PeerStat>(m, "PeerStat");
  export_enum<RowFormat>(m, "RowFormat");
  m.attr("NO_NODE") = kNoNode;
  m.attr("DEPARTED_LEAVING") = Departed::kLeaving;
  m.attr("DEPARTED_LEFT") = Departed::kLeft;
  m.attr("DEPARTED_VOTED_AGAINST") = Departed::kVotedAgainst;
  m.attr("DEPARTED_VALUES") = Departed::kValues;
  m.attr("DEPARTED_SILENT") = Departed::kSilent;
  m.attr("RING_TAIL_OFFSET") = offsetof(RingHeader, tail);
  m.attr("RING_DONE_OFFSET") = offsetof(RingHeader, done);
  m.attr("RING_HEAD_OFFSET") = offsetof(RingHeader, head);
  m.attr("EXPECT_BYTES") = sizeof(ExpectHeader);
  m.attr("IDENTITY_BYTES") = sizeof(CallIdentity);
}

}  // namespace uccl
