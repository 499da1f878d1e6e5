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
#include "tiles.h"

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

// N vectors of lanes that follow each other from b on, `loads` times, of S::steps steps each. Meanwhile what is at
// `ahead` is fetched, ahead_step further for each load; nothing if that is 0.
template <int N>
struct Following {
    const char* b;
    int loads;
    const char* ahead = nullptr;
    ptrdiff_t ahead_step = 0;

    DISTKV_INLINE const char* at(int n) const { return b + n * W * 4; }
    template <class S>
    DISTKV_INLINE void fetch() const {
        if (ahead_step == 0) return;
        DISTKV_UNROLL for (int i = 0; i < N * W * 4; i += LINE) prefetch<S::near>(ahead + i);
    }
    DISTKV_INLINE void advance(size_t bytes) {
        b += bytes;
        ahead += ahead_step;
    }
};

// The same, each vector anywhere. ahead: from what is read to what is fetched; nothing if 0.
template <int N>
struct Anywhere {
    const char* b[N];
    ptrdiff_t ahead[N];
    int loads;

    DISTKV_INLINE const char* at(int n) const { return b[n]; }
    template <class S>
    DISTKV_INLINE void fetch() const {
        DISTKV_UNROLL for (int n = 0; n < N; ++n) {
            if (ahead[n] != 0) prefetch<S::near>(b[n] + ahead[n]);
        }
    }
    DISTKV_INLINE void advance(size_t bytes) {
        DISTKV_UNROLL for (int n = 0; n < N; ++n) b[n] += bytes;
    }
};

// a: row r at a + r·a_stride, of pairs if S is a dot; its steps go on through all `count` lanes. b_bytes: from load to
// load. c: row r at c + r·c_stride.
template <class S, int R, int N, template <int> class Lanes>
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
        Lanes<N> here = lanes[l];
        auto step = [&](int chain) __attribute__((always_inline)) {
            here.template fetch<S>();
            if constexpr (is_dot<S>) {
                IVec pairs[N];
                DISTKV_UNROLL for (int n = 0; n < N; ++n) pairs[n] = load_bits(here.at(n));
                DISTKV_UNROLL for (int r = 0; r < R; ++r) {
                    const IVec x = (IVec)factor(r, 0);
                    DISTKV_UNROLL for (int n = 0; n < N; ++n) sums[chain][r][n] = dot(sums[chain][r][n], x, pairs[n]);
                }
                advance(1);
            } else if constexpr (C == 2) {  // so few that all fit into registers
                Vec y[N][S::steps];
                DISTKV_UNROLL for (int n = 0; n < N; ++n) {
                    DISTKV_UNROLL for (int k = 0; k < S::steps; ++k) y[n][k] = S::read(here.at(n), k);
                }
                DISTKV_UNROLL for (int k = 0; k < S::steps; ++k) {
                    const int to = S::steps == 2 ? k : chain;
                    DISTKV_UNROLL for (int r = 0; r < R; ++r) {
                        const Vec x = factor(r, k);
                        DISTKV_UNROLL for (int n = 0; n < N; ++n) sums[to][r][n] = fma(x, y[n][k], sums[to][r][n]);
                    }
                }
                advance(S::steps);
            } else {
                DISTKV_UNROLL for (int k = 0; k < S::steps; ++k) {
                    auto values = [&](int n) __attribute__((always_inline)) {
                        return S::read(FEW_REGISTERS && S::steps > 1 ? again(here.at(n)) : here.at(n), k);
                    };
                    // Beside the sums the factors or the values stay in registers, whichever are fewer.
                    if constexpr (R < N) {
                        Vec x[R];
                        DISTKV_UNROLL for (int r = 0; r < R; ++r) x[r] = factor(r, k);
                        DISTKV_UNROLL for (int n = 0; n < N; ++n) {
                            const Vec y = values(n);
                            DISTKV_UNROLL for (int r = 0; r < R; ++r) add_product(sums[0][r][n], x[r], y);
                        }
                    } else {
                        Vec y[N];
                        DISTKV_UNROLL for (int n = 0; n < N; ++n) y[n] = values(n);
                        DISTKV_UNROLL for (int r = 0; r < R; ++r) {
                            const Vec x = factor(r, k);
                            DISTKV_UNROLL for (int n = 0; n < N; ++n) add_product(sums[0][r][n], x, y[n]);
                        }
                    }
                }
                advance(S::steps);
            }
            here.advance(b_bytes);
        };
        const int loads = here.loads;
        int s = 0;
        for (; s + 1 < loads; s += 2) {
            step(0);
            step(C - 1);
        }
        if (s < loads) step(0);
    }
    DISTKV_UNROLL for (int r = 0; r < R; ++r) {
        DISTKV_UNROLL for (int n = 0; n < N; ++n) {
            store(c + r * c_stride + n * W, C == 2 ? sums[0][r][n] + sums[C - 1][r][n] : sums[0][r][n]);
        }
    }
}

template <class S, int N, template <int> class Lanes, int... R>
constexpr auto panels_by_rows(std::integer_sequence<int, R...>) {
    return std::array{&panel<S, R + 1, N, Lanes>...};
}

// One to MOST rows, N vectors of lanes.
template <class S, int N, int MOST = MAX_ROWS, template <int> class Lanes>
inline void panel_rows(int rows, const float* a, size_t a_stride, const Lanes<N>* lanes, int count, size_t b_bytes,
                       float* c, size_t c_stride, bool add) {
    static constexpr auto panels = panels_by_rows<S, N, Lanes>(std::make_integer_sequence<int, MOST>());
    panels[rows - 1](a, a_stride, lanes, count, b_bytes, c, c_stride, add);
}

// Whether a level multiplies S by tiles.
#if defined(DISTKV_TILES)
static_assert(PANEL == 2 * TILE_LANES);
template <class S>
constexpr bool is_tiled = is_dot<S>;
#else
constexpr int BLOCK_ROWS = 0;
template <class S>
constexpr bool is_tiled = false;
#endif

// Rows that a panel_product computes side by side.
template <class S>
constexpr int rows_at_once = is_tiled<S> ? BLOCK_ROWS : MAX_ROWS;

// rows × PANEL lanes for any number of rows, in blocks of much the same height, each of which fetches its part of what is
// ahead.
template <class S>
inline void panel_product(int rows, const float* a, size_t a_stride, Following<2> lanes, size_t b_bytes, float* c,
                          size_t c_stride, bool add) {
#if defined(DISTKV_TILES)
    if constexpr (is_tiled<S>) {
        tile_product(rows, a, a_stride, lanes.b, lanes.loads, b_bytes, lanes.ahead, lanes.ahead_step, c, c_stride, add);
        return;
    }
#endif
    const int blocks = (rows + MAX_ROWS - 1) / MAX_ROWS;
    for (int block = 0; block < blocks; ++block, lanes.ahead += lanes.loads * lanes.ahead_step) {
        const int r = rows * block / blocks, end = rows * (block + 1) / blocks;
        panel_rows<S, 2>(end - r, a + r * a_stride, a_stride, &lanes, 1, b_bytes, c + r * c_stride, c_stride, add);
    }
}

}  // namespace
