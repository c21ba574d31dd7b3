# A toolchain for 64-bit ARM (GH200, GB200, Graviton) on another machine: Debian's cross compiler, and QEMU to run what it
# makes. `pytest --cross aarch64` uses it; so can a wheel's build, by CMAKE_TOOLCHAIN_FILE.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)
