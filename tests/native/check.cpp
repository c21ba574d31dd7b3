// See check.h.
#include "native/check.h"

namespace check {

std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
Register::Register(const char* name, const char* file, void (*body)()) { cases().push_back({name, file, body}); }

void fail(const char* file, int line, const std::string& what) {
  throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + what);
}
void fail(const char* file, int line, const char* what) { fail(file, line, std::string(what)); }
void differ(const char* text, const char* file, int line, const std::string& a, const std::string& b) {
  fail(file, line, std::string(text) + ": " + a + " != " + b);
}
void differ(const char* text, const char* file, int line, long long a, long long b) {
  differ(text, file, line, std::to_string(a), std::to_string(b));
}
void differ(const char* text, const char* file, int line, unsigned long long a, unsigned long long b) {
  differ(text, file, line, std::to_string(a), std::to_string(b));
}
void differ(const char* text, const char* file, int line, double a, double b) {
  differ(text, file, line, shown(a), shown(b));
}

}  // namespace check
