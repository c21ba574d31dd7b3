// A device of the box: what the kernel's driver and the hardware know of it. Everything is guarded by `mutex()`, which
// commands and the device's own thread take; a provider library's data path writes plain memory and takes nothing.
#pragma once
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "providers/native/findings.h"
#include "transport/verbs/abi.h"

namespace box {

using uccl::u16;
using uccl::u32;
using uccl::u64;
using uccl::u8;
using Gid = std::array<u8, 16>;
namespace ibv = uccl::ibv;

std::mutex& mutex();

// The devices' time is what this process has worked: on a busy machine no peer is given up that had no turn.
struct Clock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<Clock>;
  static constexpr bool is_steady = true;
  static time_point now();
};

// The part of a command that belongs to the provider: a structure each way, of the length that its library knows.
struct Extra {
  std::span<const u8> in;
  std::span<u8> out;
  template <class T>
  T read() const {
    T t{};
    std::memcpy(&t, in.data(), std::min(in.size(), sizeof(t)));
    return t;
  }
  template <class T>
  void write(const T& t) const {
    std::memcpy(out.data(), &t, std::min(out.size(), sizeof(t)));
  }
};

struct Memory {  // a registration
  u64 iova = 0, bytes = 0;
  u8* at = nullptr;
  u32 pd = 0, access = 0;
};

struct Piece {  // an entry of a scatter or gather list
  u64 address = 0;
  u32 bytes = 0, key = 0;
};

struct Request {  // as it was read from a send queue
  enum class Kind { kSend, kWrite, kRead } kind = Kind::kSend;
  bool has_immediate = false, signalled = true, is_inline = false;
  bool broken = false;  // what lies in the queue is no request
  u32 immediate = 0;  // host order
  u64 remote = 0;
  u32 rkey = 0;
  u64 bytes = 0;
  std::vector<Piece> pieces;
  std::vector<u8> inside;
  u32 handle = 0, queue_pair = 0, qkey = 0;  // datagrams
  u64 token = 0;  // the provider's: comes back in the completion
};

struct Receive {
  std::vector<Piece> pieces;
  u64 token = 0;
};

struct Completion {
  u32 status = ibv::kWcSuccess;
  bool of_receive = false, unsolicited = false, has_immediate = false;
  Request::Kind kind = Request::Kind::kSend;
  u32 immediate = 0;
  u64 bytes = 0;
  u32 source_queue_pair = 0, source_handle = 0;
  Gid source{};
  u64 token = 0;
};

struct Own {  // what a provider keeps of an object
  virtual ~Own() = default;
};

struct Queue {  // completion queue
  u32 handle = 0, entries = 0;
  u64 user_handle = 0, written = 0;
  std::array<int, 2> events{-1, -1};  // the context's: the library's end, ours
  u32 events_reported = 0, users = 0;
  bool overrun = false;
  std::unique_ptr<Own> own;
};

struct Shared {  // shared receive queue
  u32 handle = 0, pd = 0, entries = 0, pieces = 0, users = 0;
  std::deque<Receive> receives;
  std::unique_ptr<Own> own;
};

struct Pair {  // queue pair
  u32 handle = 0, number = 0, pd = 0, type = 0, state = ibv::kQpsReset;
  u64 user_handle = 0;
  std::array<int, 2> events{-1, -1};
  u32 events_reported = 0;
  ibv::QpCap cap{};
  bool all_signalled = false;
  std::shared_ptr<Queue> sends_to, receives_to;
  std::shared_ptr<Shared> shared;
  Gid peer{};
  u32 peer_number = 0, qkey = 0, access = 0;
  u32 next_number = 0, expected_number = 0;  // of packets; a message counts as one
  u8 timeout = 0, retries = 0, rnr_retries = 0;
  std::deque<Request> requests;
  std::deque<Receive> receives;
  bool had_receives = false, ended = false;
  Clock::time_point waits_since{};  // of the first request; zero: it does not wait
  std::unique_ptr<Own> own;
};

struct Handle {  // address handle: one for each address in a protection domain, however often it is asked for
  u32 pd = 0, number = 0, users = 0;
  Gid gid{};
};

struct Identity {
  std::string device;  // as the kernel names it, less its number
  u32 vendor = 0, part = 0, abi = 1;
  u32 driver = 0;  // RDMA_DRIVER_*
  u32 node_type = 1;  // RDMA_NODE_*
  u8 link_layer = 2;  // ibv::LinkLayer
  bool datagrams = false;  // scalable reliable ones, in any order, instead of connections
  bool keys_of_nothing = false;  // the device looks at the keys of zero bytes
  bool library_flushes =
      false;  // the device says once that a queue pair has ended, the library makes completions of it
};

class Device;

// One kind of NIC: what its kernel driver answers, and the formats of its queues.
class Provider {
 public:
  virtual ~Provider() = default;
  virtual const Identity& identity() const = 0;
  virtual void limits(ibv::DeviceAttr& d) const = 0;
  virtual int open(Device& d, const Extra& e) = 0;
  virtual void query(Device&, const Extra&) {}
  virtual void make_domain(Device&, u32, const Extra&) {}
  virtual void registered(const Memory&, const Extra&) {}
  virtual int make_queue(Device& d, Queue& q, const Extra& e) = 0;
  virtual int make_shared(Device&, Shared&, const Extra&) { return EOPNOTSUPP; }
  virtual int make_pair(Device& d, Pair& p, const Extra& e) = 0;
  virtual void made_handle(Device&, Handle&, const Extra&) {}
  virtual void reset(Device& d, Pair& p) = 0;
  // Whether a write with an immediate needs no receive there.
  virtual bool takes_unsolicited(const Pair&) const { return false; }
  // Where the device's memory begins that a library maps with this offset; -1: nowhere.
  virtual long long mapped(Device&, u64 offset, u64 bytes) = 0;
  // Whether stores to what lies there are handed to `rang` one by one, with the place in that page.
  virtual bool is_register(u64) const { return false; }
  virtual void rang(Device&, u64 /*place*/, u64 /*value*/) {}
  virtual void ended(Device&, Pair&) {}
  // From the device's thread: what is new in memory goes to p.requests, p.receives, s.receives.
  virtual void fetch(Device& d, Pair& p) = 0;
  virtual void fetch(Device&, Shared&) {}
  // How many entries of the queue software has not read.
  virtual u32 unread(Device& d, Queue& q) = 0;
  virtual void complete(Device& d, Queue& q, const Pair& p, const Completion& c) = 0;
};
std::unique_ptr<Provider> make_efa();
std::unique_ptr<Provider> make_mlx5();
std::unique_ptr<Provider> make_bnxt_re();
std::unique_ptr<Provider> make_irdma();
std::unique_ptr<Provider> make_ionic();
std::unique_ptr<Provider> make_provider(const std::string& name);  // throws std::invalid_argument

class Device {
 public:
  Device(std::unique_ptr<Provider> provider, u32 index);
  ~Device();

  const std::string& name() const { return name_; }
  u32 index() const { return index_; }
  const Gid& gid() const { return gid_; }
  Provider& provider() { return *provider_; }
  const Identity& identity() const { return provider_->identity(); }
  int file() const { return file_; }  // a memfd: queues and registers that libraries map
  // Zeroed pages of that file.
  u64 allocate(u64 bytes);
  u8* memory(u64 offset) { return memory_ + offset; }

  // One step of all queues; whether anything happened.
  bool turn();

  std::map<u32, Memory> registrations;  // by key
  std::map<u32, u32> domains;           // handle -> objects in it
  std::map<u32, std::shared_ptr<Queue>> queues;
  std::map<u32, std::shared_ptr<Shared>> shared;
  std::map<u32, std::shared_ptr<Pair>> pairs;  // by number, which is the handle too
  std::map<u32, Handle> handles;
  u32 next_handle = 1;

 private:
  enum class Done { kYes, kWait };
  bool work(Pair& p);
  Done execute(Pair& p, Request& r);
  Done deliver(Pair& from, Request& r, Device& there, Pair& to);
  Done give_up(Pair& p, const Request& r);
  Pair* find_target(Pair& p, const Request& r, Device*& there, u32& status);
  bool gather(Pair& p, Request& r, std::vector<u8>& bytes);
  u8* translate(u32 key, u64 address, u64 bytes, u32 pd, u32 access);
  bool scatter(Pair& p, const Receive& receive, const std::vector<u8>& bytes);
  Receive* next_receive(Pair& p);
  void pop_receive(Pair& p);
  void finish(Pair& p, const Request& r, u32 status, u64 bytes = 0);
  void push(Pair& p, Queue& q, const Completion& c);
  void break_off(Pair& p);
  std::string at(const Pair& p) const;

  std::unique_ptr<Provider> provider_;
  u32 index_;
  std::string name_;
  Gid gid_{};
  int file_;
  u8* memory_;
  u64 used_ = 4096;
  std::mt19937_64 random_;
};

std::vector<std::unique_ptr<Device>>& devices();
Device* device_of(const Gid& gid);
void flush_pair(Device& d, Pair& p);
void send_event(const int* pipe, u64 element, u32 type);
// Events of an object that is removed, and that nobody has read: how many.
u32 take_back_events(const int* pipe, u64 element);

}  // namespace box
