// Waits end: with the value, with a fault record, or because another wait of the rank failed.
#include <atomic>
#include <thread>

#include "kernels/device/on_device.h"
#include "kernels/device/wait.h"

namespace uccl::simt {
namespace {

constexpr u64 kSecond = 1'000'000'000;

WaitContext context_of(Control& c, u64 timeout_ns) {
  return begin_wait(WaitContext{&c.abort, &c.fault, 0, 3, 0}, timeout_ns);
}

}  // namespace

TEST(wait_returns_at_once_when_the_value_is_there) {
  Control control;
  on_warp([&] {
    if (lane() != 0) return;
    const WaitContext wait = context_of(control, 0);  // even past the deadline
    CHECK(wait_until(wait, WaitSite{WaitPhase::kStart, 0, 0, 1}, [] { return 7ull; }, [](u64 v) { return v == 7; }));
  });
  CHECK_EQ(control.abort, 0ull);
  CHECK_EQ(control.fault.claimed, 0u);
}

// A call that left a peer out at its deadline goes on; its next wait is not late yet.
TEST(wait_that_begins_after_the_deadline_is_renewed_or_ends) {
  for (const u64 renewed_ns : {u64{0}, kSecond / 5}) {
    Control control;
    const u64 begin = now_ns();
    on_warp([&] {
      if (lane() != 0) return;
      WaitContext wait = context_of(control, 0);
      wait.renewed_ns = renewed_ns;
      CHECK(!wait_until(wait, WaitSite{WaitPhase::kStart, 0, 0, 1}, [] { return 0ull; }, [](u64 v) { return v == 1; }));
    });
    CHECK(now_ns() - begin >= renewed_ns);
    CHECK_EQ(control.fault.kind, static_cast<u32>(FaultKind::kTimeout));
    CHECK(control.fault.waited_ns >= renewed_ns);
  }
  Control control;  // one that begins before the deadline keeps to it
  on_warp([&] {
    if (lane() != 0) return;
    WaitContext wait = context_of(control, kSecond / 5);
    wait.renewed_ns = 3600 * kSecond;
    CHECK(!wait_until(wait, WaitSite{WaitPhase::kStart, 0, 0, 1}, [] { return 0ull; }, [](u64 v) { return v == 1; }));
  });
  CHECK_EQ(control.abort, 1ull);
}

TEST(wait_sees_what_another_thread_releases) {
  Control control;
  u64 flag = 0, data = 0;
  std::thread writer([&] {
    for (u64 i = 1; i <= 50; ++i) {
      while (std::atomic_ref<u64>(flag).load(std::memory_order_acquire) != 2 * i - 2) std::this_thread::yield();
      data = i;
      std::atomic_ref<u64>(flag).store(2 * i - 1, std::memory_order_release);
    }
  });
  u64 wrong = 0;
  on_warp([&] {
    if (lane() != 5) return;
    const WaitContext wait = context_of(control, 30 * kSecond);
    for (u64 i = 1; i <= 50; ++i) {
      wrong += !wait_until(
          wait, WaitSite{WaitPhase::kStart, 0, 0, i}, [&] { return ld_acquire_sys(&flag); },
          [&](u64 v) { return v == 2 * i - 1; });
      wrong += data != i;
      st_release_sys(&flag, 2 * i);
    }
  });
  writer.join();
  CHECK_EQ(wrong, 0ull);
  CHECK_EQ(control.abort, 0ull);
}

TEST(wait_that_expires_leaves_a_whole_record_and_ends_the_others) {
  Control control;
  const u64 begin = now_ns();
  u32 ended = 0;
  launch(LaunchConfig{3, 2 * kWarp, 0, 2, 11}, [&] {
    if (lane() != 0) return;
    // Only block 1, warp 1 has a short deadline; the rest would wait for an hour.
    const bool mine = bid() == 1 && warp() == 1;
    const WaitContext wait = context_of(control, mine ? kSecond / 50 : 3600 * kSecond);
    const u32 peer = bid() * 2 + warp();
    const bool ok = wait_until(
        wait, WaitSite{WaitPhase::kCombineReceive, peer, 9, 100 + peer}, [&] { return 40ull + peer; },
        [](u64) { return false; });
    CHECK(!ok);
    add_gpu(&ended, 1u);
  });
  CHECK_EQ(ended, 6u);
  CHECK(now_ns() - begin < 20 * kSecond);
  CHECK_EQ(control.abort, 1ull);
  const FaultRecord& f = control.fault;
  CHECK_EQ(f.claimed, 1u);
  CHECK_EQ(f.ready, 1u);
  CHECK_EQ(f.kind, static_cast<u32>(FaultKind::kTimeout));
  CHECK_EQ(f.phase, static_cast<u32>(WaitPhase::kCombineReceive));
  CHECK_EQ(f.peer, 3u);
  CHECK_EQ(f.detail, DetailWord(9u).word);
  CHECK_EQ(f.expected, 103ull);
  CHECK_EQ(f.seen, 43ull);
  CHECK(f.waited_ns <= now_ns() - begin);
}

TEST(wait_ends_when_the_proxy_aborts_and_records_nothing) {
  Control control;
  std::thread proxy([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::atomic_ref<u64>(control.abort).store(1, std::memory_order_release);
  });
  bool ok = true;
  on_warp([&] {
    if (lane() == 0)
      ok = wait_until(
          context_of(control, 3600 * kSecond), WaitSite{WaitPhase::kStart, 0, 0, 1}, [] { return 0ull; },
          [](u64 v) { return v != 0; });
  });
  proxy.join();
  CHECK(!ok);
  CHECK_EQ(control.fault.claimed, 0u);
}

TEST(wait_explains_the_loss_of_the_peer_it_waited_for) {
  struct Case {
    FaultKind kind;
    u32 lost;
    bool ready, explained;
  };
  const Case cases[] = {{FaultKind::kPeerLost, 5, true, true},
                        {FaultKind::kPeerLost, 6, true, false},   // another's wait will say
                        {FaultKind::kTimeout, 5, true, false},    // says itself
                        {FaultKind::kPeerLost, 5, false, false}};  // still being written
  for (const Case& c : cases) {
    Control control;
    control.abort = 1;
    control.fault = FaultRecord{1, c.ready, static_cast<u32>(c.kind), 0, c.lost, {}, 0, 104, 77, 0};
    for (u64 wait_number = 0; wait_number < 2; ++wait_number)  // the second finds the record explained
      on_warp([&] {
        if (lane() != 0) return;
        const WaitSite site{WaitPhase::kCombineReceive, 5, 2, 9 + wait_number};
        CHECK(!wait_until(context_of(control, 3600 * kSecond), site, [] { return 8ull; }, [](u64) { return false; }));
      });
    const FaultRecord& f = control.fault;
    CHECK_EQ(f.phase, c.explained ? static_cast<u32>(WaitPhase::kCombineReceive) : 0u);
    CHECK_EQ(f.detail, c.explained ? DetailWord(2u).word : 0u);
    CHECK_EQ(f.expected, c.explained ? 9ull : 0ull);
    CHECK_EQ(f.seen, c.explained ? 8ull : 104ull);
    CHECK_EQ(f.last_seen_ns, 77ull);
    CHECK_EQ(f.peer, c.lost);
  }
}

TEST(wait_for_a_peer_that_has_left_ends_after_a_grace) {
  for (const u64 goodbye : {0ull, 1ull, 2ull}) {  // none, leaving, left
    Control control;
    control.some_departed = 1;
    const u64 departed[4] = {2, 2, 2, goodbye};
    const u64 timeout_ns = goodbye == 2 ? 3600 * kSecond : kGoodbyeGraceNs + kSecond / 2;
    bool ok = true;
    u64 took = 0;
    on_warp([&] {
      if (lane() != 0) return;
      WaitContext wait = context_of(control, timeout_ns);
      wait.departed = departed;
      const u64 begin = now_ns();
      ok = wait_until(wait, WaitSite{WaitPhase::kCounts, 3, 0, 1}, [] { return 0ull; }, [](u64) { return false; });
      took = now_ns() - begin;
    });
    CHECK(!ok);
    CHECK_EQ(control.fault.peer, 3u);
    CHECK_EQ(control.fault.kind, static_cast<u32>(goodbye == 2 ? FaultKind::kPeerLost : FaultKind::kTimeout));
    CHECK(took >= kGoodbyeGraceNs && took < 20 * kSecond);
  }
}

TEST(wait_for_a_peer_that_is_silent_looks_once_more) {
  Control control;
  control.some_departed = 1;
  const u64 departed[1] = {Departed::kLeft | Departed::kSilent};
  u64 looks = 0;
  bool ok = true;
  on_warp([&] {
    if (lane() != 0) return;
    WaitContext wait = context_of(control, 3600 * kSecond);
    wait.departed = departed;
    const auto look = [&] { return ++looks; };
    ok = wait_until<true>(wait, WaitSite{WaitPhase::kCounts, 0, 0, 1}, look, [](u64) { return false; });
  });
  CHECK(!ok);
  CHECK_EQ(looks, 1u + 2 * kSpinsPerCheck);  // the last ones after the word was read
  CHECK_EQ(control.fault.kind, static_cast<u32>(FaultKind::kPeerLost));
}

TEST(wait_polls_without_order_and_acquires_when_it_begins_and_ends) {
  struct Word {  // each acquire empties the L1 of a GPU's processor
    u32 *acquired, *polled;
    u64 operator()() const { return ++*acquired, *polled >= 50; }
    u64 peek() const { return ++*polled >= 50; }
  };
  const auto done = [](u64 seen) { return seen != 0; };
  for (const bool of_block : {false, true}) {
    Control control;
    u32 acquired = 0, polled = 0;
    on_warp([&] {
      if (lane() != 0) return;
      if (of_block)
        wait_for_block(Word{&acquired, &polled}, done);
      else
        CHECK(wait_until(context_of(control, kSecond), WaitSite{}, Word{&acquired, &polled}, done));
    });
    CHECK_EQ(acquired, 2u);
    CHECK_EQ(polled, 50u);
  }
}

TEST(wait_looks_at_no_word_of_departures_before_there_is_one) {
  Control control;  // of 16 ranks the words would be four more reads over PCIe
  const u64 departed[1] = {2};
  on_warp([&] {
    if (lane() != 0) return;
    WaitContext wait = context_of(control, 3600 * kSecond);
    wait.departed = departed;
    SpinClock clock;
    const auto look = [&] {
      for (u32 i = 0; i < kSpinsPerCheck; ++i)
        CHECK(clock.keep_waiting(wait, WaitSite{WaitPhase::kCounts, 0, 0, 1}, FaultKind::kTimeout, 0));
      return clock.left_ns != 0;
    };
    CHECK(!look());
    control.some_departed = 1;
    CHECK(look());
  });
}

TEST(wait_takes_what_a_leaving_peer_sent_last) {
  Control control;
  control.some_departed = 1;
  const u64 departed[1] = {2};
  u64 flag = 0;
  std::thread proxy([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::atomic_ref<u64>(flag).store(1, std::memory_order_release);
  });
  bool ok = false;
  on_warp([&] {
    if (lane() != 0) return;
    WaitContext wait = context_of(control, 3600 * kSecond);
    wait.departed = departed;
    ok = wait_until(
        wait, WaitSite{WaitPhase::kCounts, 0, 0, 1}, [&] { return ld_acquire_sys(&flag); },
        [](u64 v) { return v == 1; });
  });
  proxy.join();
  CHECK(ok);
  CHECK_EQ(control.fault.claimed, 0u);
}

TEST(wait_first_fault_wins_and_is_never_mixed) {
  for (u64 seed = 1; seed < 20; ++seed) {
    Control control;
    launch(LaunchConfig{4, 33, 0, 2, seed}, [&] {
      const u32 me = bid() * 100 + tid();
      record_fault(context_of(control, kSecond), WaitSite{WaitPhase::kRing, me, me, me}, FaultKind::kMismatch, me);
    });
    const FaultRecord& f = control.fault;
    CHECK_EQ(f.peer, DetailWord::of(f.detail).number());
    CHECK_EQ(static_cast<u64>(f.peer), f.expected);
    CHECK_EQ(static_cast<u64>(f.peer), f.seen);
    CHECK_EQ(f.kind, static_cast<u32>(FaultKind::kMismatch));
    CHECK_EQ(f.waited_ns, 0ull);
    CHECK_EQ(f.ready, 1u);
    CHECK_EQ(control.abort, 1ull);
  }
}

TEST(wait_without_a_record_expires_quietly) {
  Control control;
  bool ok = true;
  on_warp([&] {
    WaitContext wait = context_of(control, 1000);
    wait.fault = nullptr;
    if (lane() == 0)
      ok = wait_until(wait, WaitSite{WaitPhase::kStart, 0, 0, 1}, [] { return 0ull; }, [](u64) { return false; });
  });
  CHECK(!ok);
  CHECK_EQ(control.abort, 0ull);
}

TEST(wait_deadline_does_not_wrap) {
  Control control;
  CHECK_EQ(context_of(control, ~0ull).deadline_ns, ~0ull);
  const u64 now = now_ns();
  const u64 deadline = context_of(control, 5 * kSecond).deadline_ns;
  CHECK(deadline >= now + 5 * kSecond && deadline < now + 6 * kSecond);
}

}  // namespace uccl::simt
