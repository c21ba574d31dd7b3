// A thread whose failed start says what it was for: the system's own words are "Resource temporarily unavailable".
#pragma once
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace uccl {

template <class... Body>
std::thread start_thread(const char* what, Body&&... body) {
  try {
    return std::thread(std::forward<Body>(body)...);
  } catch (const std::system_error& e) {
    throw std::system_error(e.code(), "cannot start the thread of " + std::string(what));
  }
}

}  // namespace uccl
