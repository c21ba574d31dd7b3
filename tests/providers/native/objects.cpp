// Objects of a device, and who still needs which.
#include "providers/native/objects.h"

#include <unistd.h>

#include <cerrno>

namespace box {

u32 add_registration(Device& d, const Memory& m) {
  // Keys that no one guesses by counting, and that differ from device to device.
  const u32 key = 0x100 + (d.next_handle++ << 4 | d.index());
  d.registrations[key] = m;
  ++d.domains[m.pd];
  return key;
}

int remove_registration(Device& d, u32 key) {
  const auto found = d.registrations.find(key);
  if (found == d.registrations.end()) return EINVAL;
  --d.domains[found->second.pd];
  d.registrations.erase(found);
  return 0;
}

int remove_domain(Device& d, u32 handle) {
  const auto found = d.domains.find(handle);
  if (found == d.domains.end()) return EINVAL;
  if (found->second != 0) {
    find(Rule::kObjects, d.name() + ": a protection domain with " + std::to_string(found->second) + " objects in it");
    return EBUSY;
  }
  d.domains.erase(found);
  return 0;
}

int make_queue(Context& c, const WantedQueue& w, const Extra& e, u32& handle, u32& entries) {
  auto q = std::make_shared<Queue>();
  q->handle = c.device->next_handle++;
  q->entries = w.entries;
  q->user_handle = w.user_handle;
  q->events = c.events;
  if (const int error = c.device->provider().make_queue(*c.device, *q, e); error != 0) return error;
  handle = q->handle;
  entries = q->entries;
  c.device->queues[handle] = std::move(q);
  return 0;
}

int remove_queue(Device& d, u32 handle, u32& events) {
  const auto found = d.queues.find(handle);
  if (found == d.queues.end()) return EINVAL;
  if (found->second->users != 0) {
    find(Rule::kObjects, d.name() + ": a completion queue with queue pairs on it");
    return EBUSY;
  }
  Queue& q = *found->second;
  events = q.events_reported - take_back_events(q.events.data(), q.user_handle);
  d.queues.erase(found);
  return 0;
}

int make_shared(Context& c, const WantedShared& w, const Extra& e, u32& handle) {
  if (!c.device->domains.contains(w.pd)) return EINVAL;
  auto s = std::make_shared<Shared>();
  s->handle = c.device->next_handle++;
  s->pd = w.pd;
  s->entries = w.entries;
  s->pieces = w.pieces;
  if (const int error = c.device->provider().make_shared(*c.device, *s, e); error != 0) return error;
  handle = s->handle;
  ++c.device->domains[w.pd];
  c.device->shared[handle] = std::move(s);
  return 0;
}

int remove_shared(Device& d, u32 handle) {
  const auto found = d.shared.find(handle);
  if (found == d.shared.end()) return EINVAL;
  if (found->second->users != 0) {
    find(Rule::kObjects, d.name() + ": a shared receive queue with queue pairs on it");
    return EBUSY;
  }
  --d.domains[found->second->pd];
  d.shared.erase(found);
  return 0;
}

int make_pair(Context& c, WantedPair& w, const Extra& e) {
  Device& d = *c.device;
  const auto sends = d.queues.find(w.sends_to), receives = d.queues.find(w.receives_to);
  if (!d.domains.contains(w.pd) || sends == d.queues.end() || receives == d.queues.end()) return EINVAL;
  auto p = std::make_shared<Pair>();
  if (w.is_shared) {
    const auto shared = d.shared.find(w.shared);
    if (shared == d.shared.end()) return EINVAL;
    p->shared = shared->second;
  }
  p->handle = p->number = d.next_handle++;
  p->pd = w.pd;
  p->type = w.type;
  p->user_handle = w.user_handle;
  p->events = c.events;
  p->cap = w.cap;
  p->all_signalled = w.all_signalled;
  p->sends_to = sends->second;
  p->receives_to = receives->second;
  if (const int error = d.provider().make_pair(d, *p, e); error != 0) return error;
  ++d.domains[w.pd];
  ++p->sends_to->users;
  ++p->receives_to->users;
  if (p->shared != nullptr) ++p->shared->users;
  w.number = p->number;
  w.cap = p->cap;
  d.pairs[p->number] = std::move(p);
  return 0;
}

int remove_pair(Device& d, u32 number, u32& events) {
  const auto found = d.pairs.find(number);
  if (found == d.pairs.end()) return EINVAL;
  Pair& p = *found->second;
  --d.domains[p.pd];
  --p.sends_to->users;
  --p.receives_to->users;
  if (p.shared != nullptr) --p.shared->users;
  events = p.events_reported - take_back_events(p.events.data(), p.user_handle);
  d.pairs.erase(found);
  return 0;
}

void close_context(Context& c) {
  const std::lock_guard lock(mutex());
  Device& d = *c.device;
  auto left = [&](std::size_t n, const char* what) {
    if (n != 0) find(Rule::kObjects, d.name() + " closed with " + std::to_string(n) + " " + what + " left");
  };
  std::erase_if(d.pairs, [&](const auto& p) {
    if (p.second->events != c.events) return false;
    left(1, "queue pair");
    return true;
  });
  if (c.events[1] >= 0) close(c.events[1]);
}

}  // namespace box
