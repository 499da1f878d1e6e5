// Which dispatch levels this machine can run; compiled for any machine.

#include "abi.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

// Whether this process may use tiles of bfloat16 (AMX): Linux saves their 8 KiB for who has asked.
bool may_use_tiles() {
#if defined(__x86_64__) && defined(__linux__)
    constexpr long REQUEST_STATE = 0x1023, TILE_DATA = 18;
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool has = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);  // AMX-BF16, AMX-TILE
    return has && syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
#else
    return false;
#endif
}

}  // namespace

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
    const bool pairs = avx512 && __builtin_cpu_supports("avx512bf16");
    levels |= pairs ? 8 : 0;
    levels |= pairs && may_use_tiles() ? 16 : 0;
#endif
    return levels;
}

// Whether products of pairs of bfloat16 take longer than those of float32, of which there are twice as many: on a Xeon they
// do, by half where there are many rows. There a level of pairs is the best only by its tiles.
DISTKV_EXPORT int distkv_machine_has_slow_pairs() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("intel");
#else
    return 0;
#endif
}
