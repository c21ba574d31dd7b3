// Which driver this process runs: UCCL_EP_TEST_PROVIDER names it, as libibverbs does.
#pragma once
#include <string>

const std::string& provider_under_test();
std::string device_under_test(unsigned index);  // of the two
bool datagrams_under_test();
bool libfabric_under_test();  // its efa provider, over libefa
// What our transport says of a library that it cannot use: tests then have nothing to run over. The runner reads it.
const std::string& refusal();
