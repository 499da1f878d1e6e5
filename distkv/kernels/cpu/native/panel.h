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

// a: row r at a + r·a_stride, of pairs if S is a dot. b: a load (of S::steps steps) every b_bytes, vectors of lanes 4·W bytes apart.
// loads: how many. c: row r at c + r·c_stride. ahead: if not 0, b + ahead is what will be read next.
template <class S, int R, int N>
__attribute__((noinline)) void panel(const float* a, size_t a_stride, const char* b, size_t b_bytes, int loads, float* c,
                         size_t c_stride, bool add, ptrdiff_t ahead) {
    // Few sums would wait for each other: these are split in two.
    constexpr int C = R * N < 8 ? 2 : 1;
    Vec sums[C][R][N];
    DISTKV_UNROLL for (int r = 0; r < R; ++r) {
        DISTKV_UNROLL for (int n = 0; n < N; ++n) {
            sums[0][r][n] = add ? load(c + r * c_stride + n * W) : Vec{};
            if (C == 2) sums[C - 1][r][n] = Vec{};
        }
    }
    int s = 0;
    auto step = [&](int chain) __attribute__((always_inline)) {
        const char* at = b + s * b_bytes;
        if (ahead != 0) {
            DISTKV_UNROLL for (int n = 0; n < N; ++n) prefetch(at + ahead + n * W * 4);
        }
        if constexpr (is_dot<S>) {
            IVec pairs[N];
            DISTKV_UNROLL for (int n = 0; n < N; ++n) pairs[n] = load_bits(at + n * W * 4);
            DISTKV_UNROLL for (int r = 0; r < R; ++r) {
                const IVec x = (IVec)splat(a[r * a_stride + s]);
                DISTKV_UNROLL for (int n = 0; n < N; ++n) sums[chain][r][n] = dot(sums[chain][r][n], x, pairs[n]);
            }
            ++s;
            return;
        }
        Vec lanes[N][S::steps];
        DISTKV_UNROLL for (int n = 0; n < N; ++n) S::read(at + n * W * 4, lanes[n]);
        DISTKV_UNROLL for (int k = 0; k < S::steps; ++k) {
            DISTKV_UNROLL for (int r = 0; r < R; ++r) {
                const Vec x = splat(a[r * a_stride + s * S::steps + k]);
                const int to = C == 1 ? 0 : S::steps == 2 ? k : chain;
                DISTKV_UNROLL for (int n = 0; n < N; ++n) sums[to][r][n] = fma(x, lanes[n][k], sums[to][r][n]);
            }
        }
        ++s;
    };
    while (s + 1 < loads) {
        step(0);
        step(C - 1);
    }
    if (s < loads) step(0);
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
inline void panel_rows(int rows, const float* a, size_t a_stride, const char* b, size_t b_bytes, int loads, float* c,
                       size_t c_stride, bool add, ptrdiff_t ahead) {
    static constexpr auto panels = panels_by_rows<S, N>(std::make_integer_sequence<int, MAX_ROWS>());
    panels[rows - 1](a, a_stride, b, b_bytes, loads, c, c_stride, add, ahead);
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
