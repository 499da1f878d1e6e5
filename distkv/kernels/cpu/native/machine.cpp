// Which dispatch levels this machine can run; compiled for any machine.

#include "abi.h"

// A bit per level, in the order of dispatch.py. The builtins also ask whether the system saves the registers.
DISTKV_EXPORT unsigned distkv_machine_levels() {
    unsigned levels = 1;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    levels |= avx2 ? 2 : 0;
    levels |= avx512 ? 4 : 0;
    levels |= avx512 && __builtin_cpu_supports("avx512bf16") ? 8 : 0;
#endif
    return levels;
}
