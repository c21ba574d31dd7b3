// Each rule is broken on purpose: the box finds it where the device has the rule, and only there. A line "judged: ..." of
// each goes into the runner's table.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "native/check.h"
#include "providers/native/box.h"
#include "providers/native/device.h"
#include "providers/native/end.h"
#include "providers/native/findings.h"
#include "providers/native/under_test.h"

using namespace uccl;
using box::End;
using box::EndShape;
using box::Posted;

namespace {

struct Ends {
  explicit Ends(const EndShape& shape = {})
      : from(device_under_test(0), datagrams_under_test(), shape),
        to(device_under_test(1), datagrams_under_test(), shape) {
    from.connect(to);
    to.connect(from);
  }
  End from, to;
};

// What was found, once something was or time is over; the rules' names in front of the colons.
std::string found(std::chrono::milliseconds wait) {
  const auto deadline = box::Clock::now() + wait;  // in the devices' time, which what they find goes by
  std::vector<std::string> all;
  while (all.empty() && box::Clock::now() < deadline) {
    for (const std::string& f : box::take_findings()) all.push_back(f.substr(0, f.find(':')));
    sched_yield();
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::string text;
  for (const std::string& f : all) text += (text.empty() ? "" : ", ") + f;
  return text;
}

constexpr auto kSoon = std::chrono::milliseconds(300), kLater = std::chrono::milliseconds(20000);

void judge(const std::string& broken, const std::string& expected) {
  const std::string what = found(expected.empty() ? kSoon : kLater);
  std::printf("judged: %s: %s\n", broken.c_str(), what.empty() ? "no rule here" : ("found (" + what + ")").c_str());
  CHECK_EQ(what, expected);
}

bool on(const char* provider) { return provider_under_test() == provider; }

}  // namespace

#define RULE(name)                  \
  void rule_##name();               \
  TEST(provider_rule_##name) {      \
    if (!refusal().empty()) return; \
    (void)box::take_findings();     \
    rule_##name();                  \
  }                                 \
  void rule_##name()

RULE(nothing_is_found_in_what_is_right) {
  Ends e;
  CHECK_EQ(e.to.receive(1), 0);
  CHECK_EQ(e.from.write(e.to, {.immediate = true}), 0);
  CHECK_EQ(e.from.status(), u32{ibv::kWcSuccess});
  CHECK_EQ(found(kSoon), std::string());
}

// Packet numbers begin where they began, so the device knows what it has had.
RULE(what_had_arrived_before_a_reset_is_not_taken_again) {
  if (datagrams_under_test()) return;
  Ends e;
  for (int i = 0; i < 2; ++i) CHECK_EQ(e.to.receive(1), 0);
  for (int i = 0; i < 2; ++i) {
    if (i != 0) e.from.connect_again(e.to);
    CHECK_EQ(e.from.write(e.to, {.immediate = true}), 0);
    CHECK_EQ(e.from.status(), u32{ibv::kWcSuccess});
    CHECK_EQ(e.to.num_arrived(), i == 0 ? 1u : 0u);
  }
}

// libefa takes the receive and never tells the device; libbnxt_re and libmlx5 write one that holds nothing.
RULE(a_receive_without_an_entry) {
  Ends e;
  CHECK_EQ(e.to.receive(0), 0);
  CHECK_EQ(e.from.write(e.to, {.immediate = true}), 0);
  judge("receive without a scatter entry", on("efa") ? "receive" : "");
}

RULE(a_shared_receive_without_an_entry) {
  const char* what = "shared receive without a scatter entry";
  if (Ends().to.nic().limits().max_srq <= 0) {
    std::printf("judged: %s: no shared receives\n", what);
    return;
  }
  Ends e({.shared = true});
  CHECK_EQ(e.to.receive(0), 0);
  judge(what, on("bnxt_re") ? "receive" : "");
}

RULE(zero_bytes_without_a_key) {
  Ends e;
  CHECK_EQ(e.from.write(e.to, {.bytes = 0, .no_local_key = true}), 0);
  const u32 status = e.from.status();
  judge("zero bytes with key 0", on("efa") ? "local key" : "");
  CHECK_EQ(status, on("efa") ? u32{ibv::kWcLocProtErr} : u32{ibv::kWcSuccess});
}

// Several requests between ibv_wr_start and ibv_wr_complete: libbnxt_re 56 finishes the last one only, 65 all of them.
RULE(several_requests_a_session) {
  Ends e;
  const char* what = e.from.is_extended() ? "several requests a session" : "several requests a call";
  CHECK_EQ(e.from.write(e.to, {.requests = 3}), 0);
  const u32 status = e.from.status();
  const bool dies = status == ibv::kWcLocQpOpErr;
  judge(what, dies ? "descriptor" : "");
  CHECK(dies ? on("bnxt_re") && e.from.is_extended() : status == ibv::kWcSuccess);
}

RULE(a_target_out_of_bounds) {
  Ends e;
  CHECK_EQ(e.from.write(e.to, {.beyond = 4092}), 0);
  CHECK_EQ(e.from.status(), u32{ibv::kWcRemAccessErr});
  judge("target out of bounds", "remote key");
}

RULE(a_wrong_remote_key) {
  Ends e;
  CHECK_EQ(e.from.write(e.to, {.rkey = e.to.rkey() + 64}), 0);
  CHECK_EQ(e.from.status(), u32{ibv::kWcRemAccessErr});
  judge("wrong remote key", "remote key");
}

RULE(a_wrong_local_key) {
  Ends e;
  CHECK_EQ(e.from.write(e.to, {.lkey = e.from.rkey() + 64}), 0);
  CHECK_EQ(e.from.status(), u32{ibv::kWcLocProtErr});
  judge("wrong local key", "local key");
}

// Nobody reads completions, and there are more requests than places. On EFA, whose device counts no reader, the sizes say it.
RULE(a_completion_queue_too_small) {
  Ends e({.entries = 8, .depth = 256});
  if (!on("efa")) {
    for (u32 i = 0; i < 200; ++i) CHECK_EQ(e.from.write(e.to, {}), 0);
  }
  judge("completion queue too small", "overrun");
}

// The driver refuses, sends it from memory instead, or lets the device take bytes that it was not promised.
RULE(inline_data_beyond_what_was_granted) {
  Ends e({.inline_bytes = 16});
  const int error = e.from.write(e.to, {.bytes = 4000, .is_inline = true});
  const u32 status = error == 0 ? e.from.status() : u32{ibv::kWcSuccess};
  const std::string what = found(kSoon);
  const std::string verdict = error != 0     ? "the driver refuses"
                              : what.empty() ? "the driver sends it from memory"
                                             : "found (" + what + ")";
  std::printf("judged: inline beyond the grant: %s\n", verdict.c_str());
  if (error != 0) CHECK_EQ(what, std::string());
  if (error == 0) CHECK_EQ(status == ibv::kWcSuccess, what.empty());
}
