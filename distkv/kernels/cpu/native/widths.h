// Lines of 64 bytes that are copied past the caches or taken into the sums of XXH3, or both, in vectors of each width; with
// half as many instructions the processor's window of them holds twice as many bytes.

#pragma once

#include "xxh3.h"

namespace {

constexpr int kLanes = 4;
constexpr int64_t kLaneBytes = 1024;  // lanes have a multiple of so many bytes

}  // namespace

#if defined(__x86_64__)

static_assert(kLaneBytes == kBlock);

namespace avx2 {
namespace {

constexpr int64_t kEarly = 4096;  // what is fetched lies so many bytes ahead

// How many blocks are worked on at once, and how many stripes of one before it is another one's turn. Narrow vectors write
// two blocks faster than four, and with checksums half as fast again if a turn is 256 bytes (AMD EPYC of the first
// generation).
template <Write write>
struct Turns {
    static constexpr bool is_read = write == Write::NOWHERE;
    static constexpr int kAtOnce = is_read ? 4 : 2, kStripes = is_read ? 1 : 4;
};

template <Write write, bool has_sums>
DISTKV_AVX2 void take(Sums& sums, char* to, const char* from, const unsigned char* secret) {
    const __m256i low = load(from), high = load(from + 32);
    if (write == Write::PAST) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to), low);
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + 1, high);
    }
    if (!has_sums) return;
    sums.low = accumulated(sums.low, low, secret);
    sums.high = accumulated(sums.high, high, secret + 32);
}

#define DISTKV_LANES_TARGET __attribute__((target("avx2")))
#include "lanes.h"
#undef DISTKV_LANES_TARGET

}  // namespace
}  // namespace avx2

namespace avx512 {
namespace {

#define DISTKV_AVX512 __attribute__((target("avx512f"), always_inline)) inline

constexpr int64_t kEarly = 2048;  // with 1 KiB memory is waited for, with 3 nothing more is gained

template <Write>
struct Turns {
    static constexpr int kAtOnce = 4, kStripes = 1;
};

using Sums = __m512i;

DISTKV_AVX512 __m512i keyed_product(__m512i keyed) { return _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32)); }

DISTKV_AVX512 Sums first_sums() {
    return _mm512_set_epi64(kPrime32_1, kPrime64_5, kPrime32_2, kPrime64_4, kPrime64_3, kPrime64_2, kPrime64_1,
                            kPrime32_3);
}

template <Write write, bool has_sums>
DISTKV_AVX512 void take(Sums& sums, char* to, const char* from, const unsigned char* secret) {
    const __m512i data = _mm512_loadu_si512(from);
    if (write == Write::PAST) _mm512_stream_si512(reinterpret_cast<__m512i*>(to), data);
    if (!has_sums) return;
    const __m512i swapped = _mm512_shuffle_epi32(data, static_cast<_MM_PERM_ENUM>(0x4E));
    const __m512i keyed = _mm512_xor_si512(data, _mm512_loadu_si512(secret));
    sums = _mm512_add_epi64(keyed_product(keyed), _mm512_add_epi64(sums, swapped));
}

DISTKV_AVX512 void scramble(Sums& sums) {
    const __m512i prime = _mm512_set1_epi64(kPrime32_1);
    const __m512i mixed = _mm512_xor_si512(sums, _mm512_srli_epi64(sums, 47));
    const __m512i keyed = _mm512_xor_si512(mixed, _mm512_loadu_si512(kSecret + 128));
    const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(keyed, 32), prime);
    sums = _mm512_add_epi64(_mm512_mul_epu32(keyed, prime), _mm512_slli_epi64(high, 32));
}

DISTKV_AVX512 void store(uint64_t* words, const Sums& sums) { _mm512_storeu_si512(words, sums); }

#define DISTKV_LANES_TARGET __attribute__((target("avx512f")))
#include "lanes.h"
#undef DISTKV_LANES_TARGET

}  // namespace
}  // namespace avx512

namespace {

using WorkOnLanes = void (*)(char* const*, const char* const*, const char* const*, int64_t, uint64_t*);

// In the widest vectors of this processor. AMD's wide ones fetch what is read once past the farther caches; Intel's would
// fetch a third as much in the same time that way.
template <Write write, bool has_sums>
WorkOnLanes work_on_lanes() {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512f")) return avx2::work_on_lanes<write, has_sums, 3>;
    return write != Write::NOWHERE && __builtin_cpu_is("amd") ? avx512::work_on_lanes<write, has_sums, 0>
                                                              : avx512::work_on_lanes<write, has_sums, 3>;
}

}  // namespace

#endif
