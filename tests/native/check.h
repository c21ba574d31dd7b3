// The test harness of the native code: one header, no dependency, one process per test when run by pytest.
//
//   TEST(ring_keeps_order_past_wrap) { CHECK_EQ(seen, 3u); CHECK(!full); }
//
// `native_tests --list` prints the names, `native_tests NAME...` runs those. A failed check ends its test by exception;
// from a thread other than the test's own, record results and check them after joining.
#pragma once
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace check {

struct Case {
  std::string name;
  const char* file;
  std::function<void()> body;
};
inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
struct Register {
  Register(const char* name, const char* file, std::function<void()> body) {
    cases().push_back({name, file, std::move(body)});
  }
};
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + what);
}
template <class A, class B>
void equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream s;
  s << text << ": " << a << " != " << b;
  fail(file, line, s.str());
}

// A sanitizer takes ten times as long, and finds in some of many alike cases, and in the rounds in which every buffer has
// been used again, what it finds in all: under one, these are a third and the first few.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kFew = true;
#else
inline constexpr bool kFew = false;
#endif
constexpr unsigned long long rounds(unsigned long long all, unsigned long long few = 4) {
  return kFew && few < all ? few : all;
}
// Whether case `number` of a list is played: not each third, since what alternates in a list would not.
constexpr bool plays(unsigned long long number) { return !kFew || (number + number / 3) % 3 == 0; }

}  // namespace check

#define TEST(name)                                                            \
  static void test_##name();                                                  \
  static const check::Register register_##name(#name, __FILE__, test_##name); \
  static void test_##name()
#define CHECK(condition)                                           \
  do {                                                             \
    if (!(condition)) check::fail(__FILE__, __LINE__, #condition); \
  } while (0)
#define CHECK_EQ(a, b) check::equal((a), (b), #a " == " #b, __FILE__, __LINE__)
#define CHECK_THROWS(type, expression)                                                 \
  do {                                                                                 \
    bool thrown_ = false;                                                              \
    try {                                                                              \
      (void)(expression);                                                              \
    } catch (const type&) { thrown_ = true; }                                          \
    if (!thrown_) check::fail(__FILE__, __LINE__, "expected " #type ": " #expression); \
  } while (0)
