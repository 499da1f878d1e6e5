// Vectors of W floats of one dispatch level, and the storage types read into them.
//
// Everything here has internal linkage: each level compiles its own copy with its own flags.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define DISTKV_INLINE inline __attribute__((always_inline))
#define DISTKV_UNROLL _Pragma("GCC unroll 16")

namespace {

#if defined(__AVX512F__)
constexpr bool FEW_REGISTERS = false;  // 16 in place of 32
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr bool FEW_REGISTERS = true;
constexpr int W = 8;
#else
constexpr bool FEW_REGISTERS = true;
constexpr int W = 4;
#endif
constexpr int LINE = 64;  // bytes that are fetched at once

typedef float Vec __attribute__((vector_size(W * 4)));
typedef int32_t IVec __attribute__((vector_size(W * 4)));

#if defined(__AVX512F__)
DISTKV_INLINE Vec splat(float x) { return (Vec)_mm512_set1_ps(x); }
#elif defined(__AVX2__)
DISTKV_INLINE Vec splat(float x) { return (Vec)_mm256_set1_ps(x); }
#else
DISTKV_INLINE Vec splat(float x) { return Vec{x, x, x, x}; }
#endif

DISTKV_INLINE Vec load(const float* p) {
    Vec x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

DISTKV_INLINE void store(float* p, Vec x) { std::memcpy(p, &x, sizeof x); }

DISTKV_INLINE IVec load_bits(const void* p) {
    IVec x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

DISTKV_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }

#if defined(__AVX512F__)
DISTKV_INLINE Vec fma(Vec a, Vec b, Vec c) { return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
DISTKV_INLINE float sum_of(Vec x) { return _mm512_reduce_add_ps((__m512)x); }
DISTKV_INLINE float max_of(Vec x) { return _mm512_reduce_max_ps((__m512)x); }
#elif defined(__AVX2__)
DISTKV_INLINE Vec fma(Vec a, Vec b, Vec c) { return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#else
DISTKV_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
#endif

#if !defined(__AVX512F__)
DISTKV_INLINE float sum_of(Vec x) {
    float sum = 0;
    for (int i = 0; i < W; ++i) sum += x[i];
    return sum;
}

DISTKV_INLINE float max_of(Vec x) {
    float peak = x[0];
    for (int i = 1; i < W; ++i) peak = x[i] > peak ? x[i] : peak;
    return peak;
}
#endif

// exp(x) for x ≤ 0, to about one unit in the last place; 0 below -87.
DISTKV_INLINE Vec exp_of(Vec x) {
    const Vec magic = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to an integer in the low bits
    const Vec shifted = fma(x, splat(1.44269504f), magic);
    const Vec n = shifted - magic;
    Vec r = fma(n, splat(-0.693145752f), x);
    r = fma(n, splat(-1.42860677e-6f), r);
    Vec p = splat(1.98756915e-4f);
    p = fma(p, r, splat(1.39819995e-3f));
    p = fma(p, r, splat(8.33345190e-3f));
    p = fma(p, r, splat(4.16657960e-2f));
    p = fma(p, r, splat(1.66666657e-1f));
    p = fma(p, r, splat(5.00000000e-1f));
    p = fma(p, r * r, r + splat(1.0f));
    const IVec exponent = ((IVec)shifted - (IVec)magic + 127) << 23;
    return x < splat(-87.0f) ? Vec{} : p * (Vec)exponent;
}

DISTKV_INLINE float exp_of(float x) { return exp_of(splat(x))[0]; }

// sum += a · b, in the register of the sum: where registers are few, compilers move sums through memory otherwise.
DISTKV_INLINE void add_product(Vec& sum, Vec a, Vec b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
#else
    sum = fma(a, b, sum);
#endif
}

// NEAR: 3 for the nearest cache, 2 for the one behind it, which waits for more lines at a time.
template <int NEAR = 3>
DISTKV_INLINE void prefetch(const void* p) {
    __builtin_prefetch(p, 0, NEAR);
}

// The same pointer, which the compiler takes for another one: what is there is loaded again, and not kept in a register.
DISTKV_INLINE const char* again(const char* p) {
    asm volatile("" : "+r"(p));
    return p;
}

// Storage types. `one` reads a single number, `read` one step of W lanes. Stored by pairs, a 32-bit lane holds the numbers
// of two steps: `pair`. near: where a panel is fetched to; of floats, twice as many bytes pass in the same time.

struct F32 {
    typedef float Stored;
    static constexpr int steps = 1;
    static DISTKV_INLINE float one(float x) { return x; }
    static DISTKV_INLINE float stored(float x) { return x; }
    static DISTKV_INLINE Vec read(const void* p, int) { return load(static_cast<const float*>(p)); }
    static constexpr int near = FEW_REGISTERS ? 2 : 3;
};

struct BF16 {
    typedef uint16_t Stored;
    static constexpr int steps = 2, near = 3;
    static DISTKV_INLINE float one(uint16_t x) {
        const uint32_t bits = static_cast<uint32_t>(x) << 16;
        float y;
        std::memcpy(&y, &bits, 4);
        return y;
    }
    // To the nearest, ties to even; NaN stays NaN.
    static DISTKV_INLINE uint16_t stored(float x) {
        uint32_t bits;
        std::memcpy(&bits, &x, 4);
        if (x != x) return static_cast<uint16_t>((bits >> 16) | 0x40);
        return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
    static DISTKV_INLINE Vec read(const void* p, int step) {
        const IVec bits = load_bits(p);
        return (Vec)(step == 0 ? bits << 16 : bits & static_cast<int32_t>(0xffff0000));
    }
};

// BF16 where products of pairs are one instruction: what it is multiplied with is rounded to pairs too.
struct BF16Dot : BF16 {};

template <class S>
constexpr bool is_dot = false;
template <>
constexpr bool is_dot<BF16Dot> = true;

#if defined(__AVX512BF16__)
#define DISTKV_DOT 1
DISTKV_INLINE Vec dot(Vec sum, IVec a, IVec b) {
    return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#elif defined(DISTKV_EMULATE_DOT)
#define DISTKV_DOT 1
#endif

#if !defined(__AVX512BF16__)
DISTKV_INLINE Vec dot(Vec sum, IVec a, IVec b) {
    const int32_t high = static_cast<int32_t>(0xffff0000);
    sum = fma((Vec)(a & high), (Vec)(b & high), sum);
    return fma((Vec)(a << 16), (Vec)(b << 16), sum);
}
#endif

// As what bfloat16 is multiplied on this level: as pairs that are never made floats where there is an instruction for that.
#if defined(DISTKV_DOT)
template <class S>
using WithDot = std::conditional_t<std::is_same_v<S, BF16>, BF16Dot, S>;
#else
template <class S>
using WithDot = S;
#endif

// floats [n], n even, become pairs of bfloat16 in the first n / 2 places.
inline void to_pairs(float* floats, int n) {
    int i = 0;
#if defined(__AVX512BF16__)
    for (; i + 2 * W <= n; i += 2 * W) {
        const __m512bh pairs = _mm512_cvtne2ps_pbh((__m512)load(floats + i + W), (__m512)load(floats + i));
        std::memcpy(floats + i / 2, &pairs, sizeof pairs);
    }
#endif
    for (; i < n; i += 2) {
        const uint32_t pair = BF16::stored(floats[i]) | static_cast<uint32_t>(BF16::stored(floats[i + 1])) << 16;
        std::memcpy(floats + i / 2, &pair, 4);
    }
}

struct F16 {
    typedef uint16_t Stored;
    static constexpr int steps = 2, near = 3;
#if defined(__F16C__)
    static DISTKV_INLINE float one(uint16_t x) { return _cvtsh_ss(x); }
    static DISTKV_INLINE uint16_t stored(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
#else
    static DISTKV_INLINE float one(uint16_t x) {
        const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16, rest = x & 0x7fff;
        uint32_t bits = rest << 13;
        float y;
        if (rest >= 0x7c00) {
            bits |= 0x7f800000;  // infinite or NaN
            std::memcpy(&y, &bits, 4);
        } else {
            std::memcpy(&y, &bits, 4);
            y *= 5.192296858534828e33f;  // 2^112, the difference of the biases; right for subnormal numbers too
        }
        std::memcpy(&bits, &y, 4);
        bits |= sign;
        std::memcpy(&y, &bits, 4);
        return y;
    }
    // To the nearest, ties to even.
    static DISTKV_INLINE uint16_t stored(float x) {
        uint32_t bits;
        std::memcpy(&bits, &x, 4);
        const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
        bits &= 0x7fffffff;
        if (bits > 0x7f800000) return sign | 0x7e00;
        if (bits >= 0x47800000) return sign | 0x7c00;
        float y;
        std::memcpy(&y, &bits, 4);
        if (bits < 0x38800000) {  // subnormal: adding 0.5 leaves the rounded fraction in the low bits
            y += 0.5f;
            std::memcpy(&bits, &y, 4);
            return sign | static_cast<uint16_t>(bits - 0x3f000000);
        }
        return sign | static_cast<uint16_t>((bits + 0xc8000fff + ((bits >> 13) & 1)) >> 13);
    }
#endif
    static DISTKV_INLINE Vec read(const void* p, int step) {
        const IVec bits = load_bits(p);
#if defined(__AVX512F__)
        const __m512i halves = step == 0 ? (__m512i)bits : _mm512_srli_epi32((__m512i)bits, 16);
        return (Vec)_mm512_cvtph_ps(_mm512_cvtepi32_epi16(halves));
#elif defined(__AVX2__)
        const __m256i halves =
            step == 0 ? _mm256_and_si256((__m256i)bits, _mm256_set1_epi32(0xffff)) : _mm256_srli_epi32((__m256i)bits, 16);
        return (Vec)_mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
#else
        Vec x;
        for (int i = 0; i < W; ++i) x[i] = one(static_cast<uint16_t>(static_cast<uint32_t>(bits[i]) >> (16 * step)));
        return x;
#endif
    }
};

}  // namespace
