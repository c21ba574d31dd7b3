// The test harness of the native code: no dependency, one process per test when run by pytest.
//
//   TEST(ring_keeps_order_past_wrap) { CHECK_EQ(seen, 3u); CHECK(!full); }
//
// `native_tests --list` prints the names, `native_tests NAME...` runs those. A failed check ends its test by exception;
// from a thread other than the test's own, record results and check them after joining.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace check {

struct Case {
  const char* name;
  const char* file;
  void (*body)();
};
std::vector<Case>& cases();
struct Register {
  Register(const char* name, const char* file, void (*body)());
};
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// There are thousands of checks: what one says when it fails is made in check.cpp, so that each compiles to a comparison
// and a call.
[[noreturn, gnu::cold]] void fail(const char* file, int line, const std::string& what);
[[noreturn, gnu::cold]] void fail(const char* file, int line, const char* what);
[[noreturn, gnu::cold]] void differ(const char* text, const char* file, int line, const std::string& a,
                                    const std::string& b);
[[noreturn, gnu::cold]] void differ(const char* text, const char* file, int line, long long a, long long b);
[[noreturn, gnu::cold]] void differ(const char* text, const char* file, int line, unsigned long long a,
                                    unsigned long long b);
[[noreturn, gnu::cold]] void differ(const char* text, const char* file, int line, double a, double b);

template <class T>
[[gnu::cold, gnu::noinline]] std::string shown(const T& value) {
  std::ostringstream s;
  s << value;
  return s.str();
}
template <class A, class B>
inline void equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) [[likely]]
    return;
  if constexpr (!std::is_arithmetic_v<A> || !std::is_arithmetic_v<B>)
    differ(text, file, line, shown(a), shown(b));
  else if constexpr (std::is_floating_point_v<A> || std::is_floating_point_v<B>)
    differ(text, file, line, static_cast<double>(a), static_cast<double>(b));
  else if constexpr (std::is_signed_v<A> || std::is_signed_v<B>)
    differ(text, file, line, static_cast<long long>(a), static_cast<long long>(b));
  else
    differ(text, file, line, static_cast<unsigned long long>(a), static_cast<unsigned long long>(b));
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
