// A thread that cannot be started says what it was for, with the system's number kept.
#include <cerrno>

#include "memory/start_thread.h"
#include "native/check.h"

using namespace uccl;

TEST(memory_start_thread_runs_its_body) {
  int seen = 0;
  start_thread("a test", [&seen](int value) { seen = value; }, 7).join();
  CHECK(seen == 7);
}

TEST(memory_start_thread_names_what_it_was_for) {
  struct Refused {  // copied when a thread is made of it, as the system refuses one
    Refused() = default;
    Refused(const Refused&) { throw std::system_error(EAGAIN, std::generic_category()); }
    void operator()() const {}
  };
  const Refused refused;
  bool caught = false;
  try {
    start_thread("the process watch", refused).join();
  } catch (const std::system_error& e) {
    caught = true;
    CHECK(e.code().value() == EAGAIN);
    CHECK(std::string(e.what()).starts_with("cannot start the thread of the process watch: "));
  }
  CHECK(caught);
}
