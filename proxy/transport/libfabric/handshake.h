// Proves every connection of a rank before it is used: each side writes a hello and an answer into the other's mailbox,
// through the same endpoints that will carry the rows (greeting.h). Control path, one thread for all lanes.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "transport/libfabric/lane.h"

namespace uccl {

struct LibfabricHandshakeCounters {
  u64 strangers = 0;  // greetings that were not sealed with this group's secret and session
  u64 retries = 0;  // greetings that the provider could not deliver at first
};

class LibfabricHandshake {
 public:
  // `peers`: the ranks to reach, each already added to every lane.
  LibfabricHandshake(const TransportSettings& settings, std::vector<std::unique_ptr<LibfabricLane>>& lanes,
                     std::vector<u32> peers);
  // Returns when each peer has proven itself on each lane, and knows that we have. Throws std::runtime_error that names
  // the ranks that did not, with the last thing that happened, when the connect timeout is over.
  void run();
  const LibfabricHandshakeCounters& counters() const { return counters_; }

 private:
  struct Contact {
    u32 peer, lane;
    bool heard = false, answered = false;  // their hello is here; our own came back
    Nonce their_nonce{};
    Proof rejected_seal{};  // of the last greeting that was refused, so that it counts once
    std::chrono::steady_clock::time_point retry_at{};
    std::string reason = "nothing came from it";
    bool done = false;
  };

  bool step(Contact& c);
  void send(Contact& c, GreetingKind kind);
  void keep_sending(Contact& c, GreetingKind kind);
  void hear_hello(Contact& c);
  void hear_answer(Contact& c);
  Greeting blank(const Contact& c, GreetingKind kind) const;
  bool is_for_us(Contact& c, const Greeting& g, GreetingKind kind);
  [[noreturn]] void give_up() const;

  const TransportSettings& settings_;
  std::vector<std::unique_ptr<LibfabricLane>>& lanes_;
  std::vector<Contact> contacts_;
  const Nonce nonce_;
  LibfabricHandshakeCounters counters_;
};

}  // namespace uccl
