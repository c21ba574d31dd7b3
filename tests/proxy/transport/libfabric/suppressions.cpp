// libfabric 1.17 keeps memory of its own when its tcp provider starts (xnet_init_rdm); leaks of ours are still found.
// The sanitizer's library looks this name up, so it must be visible, which names of ours are not by default.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:libfabric.so\n";
}
