// The contract of transport.h, over every family (and over the two that are made hard on purpose).
#include "native/check.h"
#include "proxy/transport/contract.h"
#include "transport/tcp/transport.h"
#include "transport/transport.h"

namespace {

using namespace uccl;
using contract::Family;
using contract::Shape;

Family loopback() {
  return {"loopback", [](const TransportSettings& s) { return make_transport("loopback", s); }};
}
Family shuffled() {
  return {"loopback", [](TransportSettings s) {
            s.in_process.shuffle_seed = 99;
            return make_transport("loopback", s);
          }};
}
Family simulated() {
  return {"simulated", [](TransportSettings s) {
            s.in_process.shuffle_seed = 7;
            return make_transport("simulated", s);
          }};
}
Family simulated_ordered() {
  return {"simulated", [](const TransportSettings& s) { return make_transport("simulated", s); }};
}
Family shared_memory() {
  return {"shared_memory", [](const TransportSettings& s) { return make_transport("shared_memory", s); }, true};
}
Family tcp() {
  return {"tcp", [](const TransportSettings& s) { return make_transport("tcp", s); }};
}
// The smallest buffers that the kernel grants, so that reads and writes end anywhere.
Family tcp_tiny() {
  return {"tcp", [](const TransportSettings& s) -> std::unique_ptr<Transport> {
            TcpTuning t;
            t.send_buffer_bytes = 4096;
            t.receive_buffer_bytes = 32768;
            return std::make_unique<TcpTransport>(s, t);
          }};
}
// Zero-copy asked for from the first byte on, whatever it costs.
Family tcp_zerocopy() {
  return {"tcp", [](const TransportSettings& s) -> std::unique_ptr<Transport> {
            TcpTuning t;
            t.zerocopy_bytes = 1;
            return std::make_unique<TcpTransport>(s, t);
          }};
}

}  // namespace

#define OVER_FAMILIES(name, call)         \
  TEST(transport_loopback_##name) {       \
    const Family f = loopback();          \
    call;                                 \
  }                                       \
  TEST(transport_shuffled_##name) {       \
    const Family f = shuffled();          \
    call;                                 \
  }                                       \
  TEST(transport_simulated_##name) {      \
    const Family f = simulated();         \
    call;                                 \
  }                                       \
  TEST(transport_simulated_rc_##name) {   \
    const Family f = simulated_ordered(); \
    call;                                 \
  }                                       \
  TEST(transport_shared_memory_##name) {  \
    const Family f = shared_memory();     \
    call;                                 \
  }                                       \
  TEST(transport_tcp_##name) {            \
    const Family f = tcp();               \
    call;                                 \
  }                                       \
  TEST(transport_tcp_tiny_##name) {       \
    const Family f = tcp_tiny();          \
    call;                                 \
  }

OVER_FAMILIES(random_small_writes_of_two, contract::random_writes(f, Shape{.num_ranks = 2}, 4000, 64, 1))
OVER_FAMILIES(random_writes_of_three_on_two_lanes,
              contract::random_writes(f, Shape{.num_ranks = 3, .num_lanes = 2}, 500, 3000, 2))
OVER_FAMILIES(random_writes_of_five,
              contract::random_writes(f, Shape{.num_ranks = 5, .max_in_flight = 7}, 200, 9000, 3))
OVER_FAMILIES(random_large_writes, contract::random_writes(f, Shape{.num_ranks = 2}, 60, 300000, 4))
OVER_FAMILIES(window_of_one, contract::random_writes(f, Shape{.num_ranks = 2, .max_in_flight = 1}, 300, 100, 5))
OVER_FAMILIES(zero_bytes, contract::zero_bytes(f))
OVER_FAMILIES(largest_write, contract::largest_write(f))
OVER_FAMILIES(full_queue, contract::full_queue(f))
OVER_FAMILIES(lanes_do_not_mix, contract::lanes_do_not_mix(f))
OVER_FAMILIES(close_peer, contract::close_peer(f))
OVER_FAMILIES(peer_destroyed, contract::peer_destroyed(f))
OVER_FAMILIES(last_words, contract::last_words(f))
OVER_FAMILIES(out_of_bounds, contract::out_of_bounds(f))
OVER_FAMILIES(refused_requests, contract::refused_requests(f))
OVER_FAMILIES(connect_times_out, contract::connect_times_out(f))
OVER_FAMILIES(connect_twice, contract::connect_twice(f))
OVER_FAMILIES(stranger_rank, contract::stranger_rank(f))

TEST(transport_tcp_zerocopy_random_writes) {
  contract::random_writes(tcp_zerocopy(), Shape{.num_ranks = 2}, 300, 100000, 6);
}
