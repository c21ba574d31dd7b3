// A function of the C library that the program has of its own: how it is declared, and how it calls the library's.
#pragma once
#include <dlfcn.h>

namespace box {

template <class F>
F* next(F*, const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

}  // namespace box

#define NEXT(name) static auto* const real = box::next(&name, #name)
#define EXPORTED extern "C" __attribute__((visibility("default")))
