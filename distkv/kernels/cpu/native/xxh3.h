// XXH3 (64 bits, no seed, its default secret) of inputs longer than 240 bytes, of bytes that are copied on the way or lie
// still. Tests compare it with xxhash.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

// Where bytes go that are looked at: nowhere, to memory, or to memory past the caches, aligned by 32 bytes.
enum class Write { NOWHERE, CACHED, PAST };

}  // namespace

#if defined(__x86_64__)
#include <immintrin.h>

namespace {

constexpr uint64_t kPrime32_1 = 0x9E3779B1U, kPrime32_2 = 0x85EBCA77U, kPrime32_3 = 0xC2B2AE3DU;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87ULL, kPrime64_2 = 0xC2B2AE3D27D4EB4FULL;
constexpr uint64_t kPrime64_3 = 0x165667B19E3779F9ULL, kPrime64_4 = 0x85EBCA77C2B2AE63ULL;
constexpr uint64_t kPrime64_5 = 0x27D4EB2F165667C5ULL, kAvalanche = 0x165667919E3779F9ULL;
constexpr int64_t kStripe = 64, kStripesPerBlock = 16, kBlock = kStripe * kStripesPerBlock, kFetched = 4096;
constexpr int kLastStripeKey = 121, kMergeKey = 11;  // where in the secret these keys begin

constexpr unsigned char kSecret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

uint64_t word(const unsigned char* at) {
    uint64_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

uint64_t folded(uint64_t a, uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// What is made of the sums over all bytes.
uint64_t merged(const uint64_t* words, int64_t size) {
    uint64_t sum = static_cast<uint64_t>(size) * kPrime64_1;
    for (int i = 0; i < 4; ++i) {
        const unsigned char* secret = kSecret + kMergeKey + 16 * i;
        sum += folded(words[2 * i] ^ word(secret), words[2 * i + 1] ^ word(secret + 8));
    }
    sum = (sum ^ (sum >> 37)) * kAvalanche;
    return sum ^ (sum >> 32);
}

#define DISTKV_AVX2 __attribute__((target("avx2"), always_inline)) inline

DISTKV_AVX2 __m256i load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }

DISTKV_AVX2 __m256i accumulated(__m256i sum, __m256i data, const unsigned char* secret) {
    const __m256i keyed = _mm256_xor_si256(data, load(secret));
    const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
    return _mm256_add_epi64(product, _mm256_add_epi64(sum, _mm256_shuffle_epi32(data, 0x4E)));
}

DISTKV_AVX2 __m256i scrambled(__m256i sum, const unsigned char* secret) {
    const __m256i prime = _mm256_set1_epi32(static_cast<int>(kPrime32_1));
    const __m256i keyed = _mm256_xor_si256(_mm256_xor_si256(sum, _mm256_srli_epi64(sum, 47)), load(secret));
    const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(keyed, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(keyed, prime), _mm256_slli_epi64(high, 32));
}

struct Sums {
    __m256i low, high;
};

DISTKV_AVX2 Sums first_sums() {
    return {_mm256_set_epi64x(kPrime64_3, kPrime64_2, kPrime64_1, kPrime32_3),
            _mm256_set_epi64x(kPrime32_1, kPrime64_5, kPrime32_2, kPrime64_4)};
}

DISTKV_AVX2 void scramble(Sums& sums) {
    sums.low = scrambled(sums.low, kSecret + 128);
    sums.high = scrambled(sums.high, kSecret + 160);
}

DISTKV_AVX2 void store(uint64_t* words, const Sums& sums) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), sums.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words) + 1, sums.high);
}

// Writes a stripe and takes it into the sums; `ahead` is needed soon.
template <Write write>
DISTKV_AVX2 void stripe(Sums& sums, char* to, const char* from, const unsigned char* secret, const char* ahead) {
    _mm_prefetch(ahead, _MM_HINT_T0);
    const __m256i low = load(from), high = load(from + 32);
    auto* target = reinterpret_cast<__m256i*>(to);
    if (write == Write::PAST) {
        _mm256_stream_si256(target, low);
        _mm256_stream_si256(target + 1, high);
    } else if (write == Write::CACHED) {
        _mm256_storeu_si256(target, low);
        _mm256_storeu_si256(target + 1, high);
    }
    sums.low = accumulated(sums.low, low, secret);
    sums.high = accumulated(sums.high, high, secret + 32);
}

// The checksum of `size` > 240 bytes; `next`: where those begin that follow in time. to: unused if nothing is written.
template <Write write>
__attribute__((target("avx2"))) uint64_t checksum_of(char* to, const char* from, int64_t size, const char* next) {
    Sums sums = first_sums();
    const int64_t blocks = (size - 1) / kBlock, stripes = (size - 1 - blocks * kBlock) / kStripe;
    // What is fetched while `at` is worked on lies this far behind it, in the next block where this one has ended.
    const int64_t ahead = std::min(kFetched, size);
    int64_t at = 0;
    for (int64_t block = 0; block < blocks; ++block) {
        const char* fetched = at + ahead < size ? from + at + ahead : next + (at + ahead - size);
        for (int64_t i = 0; i < kStripesPerBlock; ++i, at += kStripe) {
            stripe<write>(sums, to + at, from + at, kSecret + 8 * i, fetched + i * kStripe);
        }
        scramble(sums);
    }
    next += ahead - size;
    for (int64_t i = 0; i < stripes; ++i, at += kStripe) {
        stripe<write>(sums, to + at, from + at, kSecret + 8 * i, next + at);
    }
    if (size - at == kStripe) {
        stripe<write>(sums, to + at, from + at, kSecret + kLastStripeKey, next + at);
    } else {
        // The last stripe ends with the input, so it overlaps others. It is read back, as the source may change
        // meanwhile: what is checked is what was written.
        if (write != Write::NOWHERE) std::memcpy(to + at, from + at, size - at);
        const char* there = (write == Write::NOWHERE ? from : to) + size;
        sums.low = accumulated(sums.low, load(there - 64), kSecret + kLastStripeKey);
        sums.high = accumulated(sums.high, load(there - 32), kSecret + kLastStripeKey + 32);
    }
    uint64_t words[8];
    store(words, sums);
    return merged(words, size);
}

[[maybe_unused]] bool can_checksum(int64_t size) {
    __builtin_cpu_init();
    return size > 240 && __builtin_cpu_supports("avx2");
}

}  // namespace

#else

namespace {

template <Write write>
uint64_t checksum_of(char*, const char*, int64_t, const char*) {
    return 0;
}

[[maybe_unused]] bool can_checksum(int64_t) { return false; }

}  // namespace

#endif
