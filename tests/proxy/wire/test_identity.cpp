// Identities of calls: fields keep apart, and the first that differs is named with both values.
#include <random>

#include "native/check.h"
#include "wire/identity.h"

using namespace uccl;

namespace {

using L = LowLatencyShape;
using T = ThroughputShape;
const IdentityField kLowLatency[] = {L::call(), L::max_tokens(), L::hidden(), L::experts(), L::format(), L::form()};
const IdentityField kThroughput[] = {T::call(), T::dtype(),   T::row_bytes(),   T::scale_bytes(),
                                     T::topk(), T::has_ids(), T::has_weights(), T::channels()};
const IdentityField kOrigin[] = {OriginFields::dispatch(), OriginFields::tag()};

template <u32 n>
void check_apart(const IdentityField (&fields)[n]) {
  u64 all = 0;
  for (const IdentityField& field : fields) {
    const u64 mask = field.put(~0ull);
    CHECK_EQ(all & mask, 0ull);
    CHECK_EQ(field.of(mask), low_bits(static_cast<int>(field.bits)));
    all |= mask;
  }
}

u64 shape(CallKind kind) { return L::call().put(static_cast<u64>(kind)); }

// Changing one field of `word` is told as that field.
template <u32 n>
void check_named(const IdentityField (&fields)[n], CallKind kind, u64 CallIdentity::* word) {
  std::mt19937_64 random(static_cast<u64>(kind));
  for (const IdentityField& field : fields)
    for (int i = 0; i < 20; ++i) {
      CallIdentity mine{shape(kind) | (random() & ~low_bits(3)), random()}, theirs = mine;
      theirs.*word ^= field.put(1 + random() % low_bits(static_cast<int>(field.bits)));
      IdentityDifference difference;
      CHECK(first_difference(mine, theirs, &difference));
      CHECK(difference.what == field.what);
      CHECK_EQ(difference.mine, field.of(mine.*word));
      CHECK_EQ(difference.theirs, field.of(theirs.*word));
      CHECK(!first_difference(mine, mine, &difference));
    }
}

}  // namespace

TEST(wire_identity_fields_keep_apart) {
  check_apart(kLowLatency);
  check_apart(kThroughput);
  check_apart(kOrigin);
}

TEST(wire_identity_names_the_field_that_differs) {
  for (const CallKind kind : {CallKind::kLowLatencyDispatch, CallKind::kLowLatencyCombine}) {
    check_named(kLowLatency, kind, &CallIdentity::shape);
    check_named(kOrigin, kind, &CallIdentity::origin);
  }
  for (const CallKind kind : {CallKind::kCachedDispatch, CallKind::kCombine}) {
    check_named(kThroughput, kind, &CallIdentity::shape);
    check_named(kOrigin, kind, &CallIdentity::origin);
  }
}

TEST(wire_identity_of_memory_that_nobody_wrote_is_another_call) {
  IdentityDifference difference;
  CHECK(first_difference(CallIdentity{shape(CallKind::kCombine), 0}, CallIdentity{0, 0}, &difference));
  CHECK(difference.what == MismatchField::kCall);
  CHECK_EQ(difference.theirs, static_cast<u64>(CallKind::kNone));
}
