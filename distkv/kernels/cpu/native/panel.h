// The one inner loop of this library: a few rows times a panel of lanes, summed over steps.
//
//   c[r][lane] (+)= Σ_s a[r][s] · b[s][lane]        r < R, lane < N·W
//
// With a = queries, b = keys: scores. With a = weights, b = values: outputs. With a = activations, b = a packed weight
// matrix: a linear layer. 16-bit panels hold two steps in each 32-bit lane, so that a load of W lanes needs two cheap
// operations to become two vectors of floats, and a machine with a dot product of pairs none.

#pragma once

#include <array>
#include <utility>

#include "simd.h"

namespace {

// Rows that are computed side by side, and vectors of lanes, so that all sums stay in registers.
#if defined(__AVX512F__)
constexpr int MAX_ROWS = 12;
#elif defined(__AVX2__)
constexpr int MAX_ROWS = 6;
#else
constexpr int MAX_ROWS = 4;
#endif
constexpr int PANEL = 2 * W;  // lanes of a panel that this level makes for itself

// Where N vectors of lanes are: `loads` times each, of S::steps steps. ahead: b[n] + ahead[n] is read later, if not 0.
template <int N>
struct Lanes {
    const char* b[N];
    ptrdiff_t ahead[N];
    int loads;
};

// Vectors that follow each other.
template <int N>
DISTKV_INLINE Lanes<N> following(const char* b, int loads, ptrdiff_t ahead) {
    Lanes<N> lanes;
    DISTKV_UNROLL for (int n = 0; n < N; ++n) {
        lanes.b[n] = b + n * W * 4;
        lanes.ahead[n] = ahead;
    }
    lanes.loads = loads;
    return lanes;
}

// a: row r at a + r·a_stride, of pairs if S is a dot; its steps go on through all `count` lanes. b_bytes: from load to
// load. c: row r at c + r·c_stride.
template <class S, int R, int N>
__attribute__((noinline)) void panel(const float* a, size_t a_stride, const Lanes<N>* lanes, int count, size_t b_bytes,
                                     float* c, size_t c_stride, bool add) {
    // Few sums would wait for each other: these are split in two.
    constexpr int C = R * N <= W / 2 ? 2 : 1;
    Vec sums[C][R][N];
    DISTKV_UNROLL for (int r = 0; r < R; ++r) {
        DISTKV_UNROLL for (int n = 0; n < N; ++n) {
            sums[0][r][n] = add ? load(c + r * c_stride + n * W) : Vec{};
            if (C == 2) sums[C - 1][r][n] = Vec{};
        }
    }
    // Three rows to a pointer: an address is then a pointer and one or two strides, and all fit into registers.
    constexpr int POINTERS = (R + 2) / 3;
    const char* rows[POINTERS];
    DISTKV_UNROLL for (int p = 0; p < POINTERS; ++p) rows[p] = reinterpret_cast<const char*>(a + 3 * p * a_stride);
    const size_t stride = a_stride * 4;
    auto factor = [&](int r, int k) __attribute__((always_inline)) {
        float x;
        std::memcpy(&x, rows[r / 3] + r % 3 * stride + k * 4, 4);
        return splat(x);
    };
    auto advance = [&](int steps) __attribute__((always_inline)) {
        DISTKV_UNROLL for (int p = 0; p < POINTERS; ++p) rows[p] += steps * 4;
    };
    for (int l = 0; l < count; ++l) {
        const char* b[N];
        ptrdiff_t ahead[N];
        DISTKV_UNROLL for (int n = 0; n < N; ++n) {
            b[n] = lanes[l].b[n];
            ahead[n] = lanes[l].ahead[n];
        }
        auto step = [&](int chain) __attribute__((always_inline)) {
            DISTKV_UNROLL for (int n = 0; n < N; ++n) {
                if (ahead[n] != 0) prefetch(b[n] + ahead[n]);
            }
            if constexpr (is_dot<S>) {
                IVec pairs[N];
                DISTKV_UNROLL for (int n = 0; n < N; ++n) pairs[n] = load_bits(b[n]);
                DISTKV_UNROLL for (int r = 0; r < R; ++r) {
                    const IVec x = (IVec)factor(r, 0);
                    DISTKV_UNROLL for (int n = 0; n < N; ++n) sums[chain][r][n] = dot(sums[chain][r][n], x, pairs[n]);
                }
                advance(1);
            } else {
                Vec values[N][S::steps];
                DISTKV_UNROLL for (int n = 0; n < N; ++n) S::read(b[n], values[n]);
                DISTKV_UNROLL for (int k = 0; k < S::steps; ++k) {
                    const int to = C == 1 ? 0 : S::steps == 2 ? k : chain;
                    DISTKV_UNROLL for (int r = 0; r < R; ++r) {
                        const Vec x = factor(r, k);
                        DISTKV_UNROLL for (int n = 0; n < N; ++n) sums[to][r][n] = fma(x, values[n][k], sums[to][r][n]);
                    }
                }
                advance(S::steps);
            }
            DISTKV_UNROLL for (int n = 0; n < N; ++n) b[n] += b_bytes;
        };
        int s = 0;
        for (; s + 1 < lanes[l].loads; s += 2) {
            step(0);
            step(C - 1);
        }
        if (s < lanes[l].loads) step(0);
    }
    DISTKV_UNROLL for (int r = 0; r < R; ++r) {
        DISTKV_UNROLL for (int n = 0; n < N; ++n) {
            store(c + r * c_stride + n * W, C == 2 ? sums[0][r][n] + sums[C - 1][r][n] : sums[0][r][n]);
        }
    }
}

template <class S, int N, int... R>
constexpr auto panels_by_rows(std::integer_sequence<int, R...>) {
    return std::array{&panel<S, R + 1, N>...};
}

// One to MAX_ROWS rows, N vectors of lanes.
template <class S, int N>
inline void panel_rows(int rows, const float* a, size_t a_stride, const Lanes<N>* lanes, int count, size_t b_bytes,
                       float* c, size_t c_stride, bool add) {
    static constexpr auto panels = panels_by_rows<S, N>(std::make_integer_sequence<int, MAX_ROWS>());
    panels[rows - 1](a, a_stride, lanes, count, b_bytes, c, c_stride, add);
}

template <class S, int N>
inline void panel_rows(int rows, const float* a, size_t a_stride, const char* b, size_t b_bytes, int loads, float* c,
                       size_t c_stride, bool add, ptrdiff_t ahead) {
    const Lanes<N> lanes = following<N>(b, loads, ahead);
    panel_rows<S, N>(rows, a, a_stride, &lanes, 1, b_bytes, c, c_stride, add);
}

// rows × PANEL lanes for any number of rows: the matrix product of everything that is unpacked to floats first.
template <class S>
inline void panel_product(int rows, const float* a, size_t a_stride, const char* b, size_t b_bytes, int loads, float* c,
                          size_t c_stride, bool add) {
    for (int r = 0; r < rows; r += MAX_ROWS) {
        const int some = rows - r < MAX_ROWS ? rows - r : MAX_ROWS;
        panel_rows<S, 2>(some, a + r * a_stride, a_stride, b, b_bytes, loads, c + r * c_stride, c_stride, add, 0);
    }
}

}  // namespace
