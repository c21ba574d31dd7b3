// What a call is, as each rank was called: two words that a sender leaves beside what it sends and a reader compares with
// its own. Ranks that disagree refuse the call, each by name, before a row of it is believed.
//
//   shape, low latency   [2:0] call | [19:3] most tokens of a rank | [38:20] hidden size | [51:39] experts
//                        [55:52] row format | [56] rows are summed in the node first
//   shape, throughput    [2:0] call | [24:3] row bytes | [40:25] scale bytes | [46:41] top-k | [47] ids | [48] weights
//                        [55:49] channels | [61:56] dtype
//   origin               [31:0] the dispatch that is answered or repeated, by its number; a dispatch's own is left 0
//                        [63:32] the tag that the caller gave its step (Buffer.set_call_tag), 0 = none
#pragma once
#include "wire/limits.h"
#include "wire/types.h"

namespace uccl {

// What two ranks disagree in. Also the name that a user reads (uccl_ep/membership/fault_errors.py has the words, in this order).
enum class MismatchField : u32 {
  kChannels = 0,
  kExperts,
  kTopk,
  kRowBytes,
  kScaleBytes,
  kHasIds,
  kHasWeights,
  kReceivedRows,  // a rank by itself: more rows than num_worst_tokens
  kMaxTokens,
  kHidden,
  kRowFormat,
  kCombineForm,
  kCall,
  kOrigin,
  kTag,
  kDtype
};

// Calls that carry an identity, as `shape` names them.
enum class CallKind : u32 { kNone = 0, kLowLatencyDispatch, kLowLatencyCombine, kCachedDispatch, kCombine };

struct alignas(16) CallIdentity {
  u64 shape, origin;

  static constexpr u64 origin_of(u32 dispatch, u32 tag) { return static_cast<u64>(tag) << 32 | dispatch; }
  constexpr bool operator==(const CallIdentity& o) const { return shape == o.shape && origin == o.origin; }
};
static_assert(sizeof(CallIdentity) == 16);

// Bits of `shape` (or of `origin`) that hold one field.
struct IdentityField {
  MismatchField what;
  u32 shift, bits;
  constexpr u64 of(u64 word) const { return word >> shift & low_bits(static_cast<int>(bits)); }
  constexpr u64 put(u64 value) const { return (value & low_bits(static_cast<int>(bits))) << shift; }
};

// Functions, since a GPU's compiler gives a static member no address.
struct LowLatencyShape {
  static constexpr IdentityField call() { return {MismatchField::kCall, 0, 3}; }
  static constexpr IdentityField max_tokens() { return {MismatchField::kMaxTokens, 3, 17}; }
  static constexpr IdentityField hidden() { return {MismatchField::kHidden, 20, 19}; }
  static constexpr IdentityField experts() { return {MismatchField::kExperts, 39, 13}; }
  static constexpr IdentityField format() { return {MismatchField::kRowFormat, 52, 4}; }
  static constexpr IdentityField form() { return {MismatchField::kCombineForm, 56, 1}; }
};
static_assert(kMaxTokensPerRank < 1u << 17 && kMaxHidden < 1u << 19 && kMaxExperts < 1u << 13);

struct ThroughputShape {
  static constexpr IdentityField call() { return {MismatchField::kCall, 0, 3}; }
  static constexpr IdentityField row_bytes() { return {MismatchField::kRowBytes, 3, 22}; }
  static constexpr IdentityField scale_bytes() { return {MismatchField::kScaleBytes, 25, 16}; }
  static constexpr IdentityField topk() { return {MismatchField::kTopk, 41, 6}; }
  static constexpr IdentityField has_ids() { return {MismatchField::kHasIds, 47, 1}; }
  static constexpr IdentityField has_weights() { return {MismatchField::kHasWeights, 48, 1}; }
  static constexpr IdentityField channels() { return {MismatchField::kChannels, 49, 7}; }
  static constexpr IdentityField dtype() { return {MismatchField::kDtype, 56, 6}; }
};
static_assert(kMaxTopk < 1u << 6 && kMaxChannels < 1u << 7);

struct OriginFields {
  static constexpr IdentityField dispatch() { return {MismatchField::kOrigin, 0, 32}; }
  static constexpr IdentityField tag() { return {MismatchField::kTag, 32, 32}; }
};

// The first field in which two identities differ, and both values of it.
struct IdentityDifference {
  MismatchField what;
  u64 mine, theirs;
};

// False: they are alike.
constexpr bool first_difference(const CallIdentity& mine, const CallIdentity& theirs, IdentityDifference* out) {
  if (mine == theirs) return false;
  using L = LowLatencyShape;
  using T = ThroughputShape;
  const auto in = [&](IdentityField field, u64 here, u64 there) {
    if (field.of(here) == field.of(there)) return false;
    *out = IdentityDifference{field.what, field.of(here), field.of(there)};
    return true;
  };
  const auto shape = [&](IdentityField field) { return in(field, mine.shape, theirs.shape); };
  const auto origin = [&](IdentityField field) { return in(field, mine.origin, theirs.origin); };
  const CallKind kind = static_cast<CallKind>(L::call().of(mine.shape));
  const bool low_latency = kind == CallKind::kLowLatencyDispatch || kind == CallKind::kLowLatencyCombine;
  if (low_latency ? shape(L::call()) || shape(L::max_tokens()) || shape(L::hidden()) || shape(L::experts()) ||
                        shape(L::format()) || shape(L::form())
                  : shape(T::call()) || shape(T::dtype()) || shape(T::row_bytes()) || shape(T::scale_bytes()) ||
                        shape(T::topk()) || shape(T::has_ids()) || shape(T::has_weights()) || shape(T::channels()))
    return true;
  return origin(OriginFields::tag()) || origin(OriginFields::dispatch());
}

}  // namespace uccl
