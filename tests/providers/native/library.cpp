// The box in front of the C library of a program that is not ours (LD_PRELOAD): it changes nothing until it is begun.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>

#include "providers/native/box.h"
#include "providers/native/findings.h"
#include "providers/native/next.h"

// As box::begin; null: standard error has why not.
EXPORTED const char* provider_box_begin(const char* provider, unsigned num_devices) {
  try {
    return box::begin(provider, num_devices).c_str();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return nullptr;
  }
}

// What was found since the last call, a line each, as much of it as `bytes` hold; ends with a zero.
EXPORTED void provider_box_findings(char* text, unsigned bytes) {
  std::string all;
  for (const std::string& f : box::take_findings()) all += f + "\n";
  const std::size_t n = std::min<std::size_t>(all.size(), bytes - 1);
  std::memcpy(text, all.data(), n);
  text[n] = 0;
}
