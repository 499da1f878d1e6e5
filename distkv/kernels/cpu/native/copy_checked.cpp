// Scattered copies that compute the checksum of every block on the way: the bytes are looked at while they are in
// registers, so that checking costs arithmetic only and no second pass over memory. The sums fill the processor's window
// of instructions, in which a copy alone finds its next lines by itself; so lines are fetched early, on into the block that
// is copied next: a page ahead, or a quarter of one where blocks lie scattered and are copied a few at once, in turn, each
// at a place in memory of its own.

#include "abi.h"
#include "xxh3.h"

#if defined(__x86_64__)

namespace {

constexpr int kLanes = 4;
constexpr int64_t kStripesInTurn = 4;

}  // namespace

namespace avx2 {
namespace {

template <Write write>
DISTKV_AVX2 void take(Sums& sums, char* to, const char* from, const unsigned char* secret) {
    const __m256i low = load(from), high = load(from + 32);
    if (write == Write::PAST) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to), low);
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + 1, high);
    }
    sums.low = accumulated(sums.low, low, secret);
    sums.high = accumulated(sums.high, high, secret + 32);
}

#define DISTKV_LANES_TARGET __attribute__((target("avx2")))
#include "xxh3_lanes.h"
#undef DISTKV_LANES_TARGET

}  // namespace
}  // namespace avx2

// With half as many instructions the same window holds twice as many bytes.
namespace avx512 {
namespace {

#define DISTKV_AVX512 __attribute__((target("avx512f"), always_inline)) inline

using Sums = __m512i;

DISTKV_AVX512 __m512i keyed_product(__m512i keyed) { return _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32)); }

DISTKV_AVX512 Sums first_sums() {
    return _mm512_set_epi64(kPrime32_1, kPrime64_5, kPrime32_2, kPrime64_4, kPrime64_3, kPrime64_2, kPrime64_1,
                            kPrime32_3);
}

template <Write write>
DISTKV_AVX512 void take(Sums& sums, char* to, const char* from, const unsigned char* secret) {
    const __m512i data = _mm512_loadu_si512(from);
    if (write == Write::PAST) _mm512_stream_si512(reinterpret_cast<__m512i*>(to), data);
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
#include "xxh3_lanes.h"
#undef DISTKV_LANES_TARGET

}  // namespace
}  // namespace avx512

namespace {

using ChecksumsOfLanes = void (*)(char* const*, const char* const*, const char* const*, int64_t, uint64_t*);

// Null where blocks of this size are looked at one by one.
template <Write write>
ChecksumsOfLanes lanes_for(int64_t block_bytes) {
    if (block_bytes % kBlock != 0) return nullptr;
    return __builtin_cpu_supports("avx512f") ? avx512::checksums_of_lanes<write> : avx2::checksums_of_lanes<write>;
}

// Whether the next kLanes of `count` blocks are looked at at once: a row of blocks is read faster one after the other.
// places: null if they go nowhere.
bool are_lanes(const int64_t* slots, const int64_t* places, int64_t count) {
    if (count < kLanes) return false;
    bool is_row = true, is_aligned = true;
    for (int lane = 0; lane < kLanes; ++lane) {
        is_row &= slots[lane] - slots[0] == lane;
        is_aligned &= !places || (places[lane] & 63) == 0;
    }
    return is_aligned && !is_row;
}

template <Write write>
void checksums_of_blocks(const char* base, const int64_t* slots, const int64_t* places, uint64_t* checksums,
                         int64_t count, int64_t block_bytes) {
    const ChecksumsOfLanes of_lanes = lanes_for<write>(block_bytes);
    const auto block = [&](int64_t i) { return base + slots[i < count ? i : count - 1] * block_bytes; };
    const auto place = [&](int64_t i) { return write == Write::NOWHERE ? nullptr : reinterpret_cast<char*>(places[i]); };
    for (int64_t i = 0; i < count;) {
        if (of_lanes && are_lanes(slots + i, places ? places + i : nullptr, count - i)) {
            char* to[kLanes];
            const char *from[kLanes], *next[kLanes];
            for (int lane = 0; lane < kLanes; ++lane) {
                to[lane] = place(i + lane);
                from[lane] = block(i + lane);
                next[lane] = block(i + kLanes + lane);
            }
            of_lanes(to, from, next, block_bytes, checksums + i);
            i += kLanes;
            continue;
        }
        const bool is_aligned = write == Write::PAST && (places[i] & 31) == 0;
        checksums[i] = write == Write::NOWHERE || is_aligned
                           ? checksum_of<write>(place(i), block(i), block_bytes, block(i + 1))
                           : checksum_of<Write::CACHED>(place(i), block(i), block_bytes, block(i + 1));
        ++i;
    }
}

}  // namespace

#endif

// Copies blocks slots[i] of `block_bytes` each, counted from `base`, to the addresses places[i], for `count` blocks; the
// checksum of each goes to `checksums`. Returns 0, with nothing copied, where this machine or the size of a block does not
// allow it.
DISTKV_EXPORT int distkv_copy_blocks_checked(const char* base, const int64_t* slots, const int64_t* places,
                                             uint64_t* checksums, int64_t count, int64_t block_bytes) {
    if (!can_checksum(block_bytes)) return 0;
#if defined(__x86_64__)
    checksums_of_blocks<Write::PAST>(base, slots, places, checksums, count, block_bytes);
    _mm_sfence();
#endif
    return 1;
}

// The checksums of blocks slots[i], likewise, which lie still.
DISTKV_EXPORT int distkv_checksum_blocks(const char* base, const int64_t* slots, uint64_t* checksums, int64_t count,
                                         int64_t block_bytes) {
    if (!can_checksum(block_bytes)) return 0;
#if defined(__x86_64__)
    checksums_of_blocks<Write::NOWHERE>(base, slots, nullptr, checksums, count, block_bytes);
#endif
    return 1;
}
