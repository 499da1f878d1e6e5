// One query row's attention to keys and values by products of tiles: where several heads share them, vectors compute for
// longer than memory takes to bring them.

#pragma once

#include "panel.h"

namespace {

// Only of what a level multiplies by tiles.
template <class S>
struct AttentionTiles;

#if defined(DISTKV_TILES)

constexpr int VALUE_PAIRS = 8;  // of values at once: of 16 tokens, the smallest block that is taken by tiles

template <>
struct AttentionTiles<BF16Dot> {
    // All shapes stay for a whole piece of work, for another one takes as long as the products of a block: tiles 0 and 1 are
    // sums, 2 and 3 the queries and the weights of a group's heads, 4 and 5 keys, 6 and 7 values.
    static void shape(int group) {
        TileShape shape;
        for (int i = 0; i < 2; ++i) {
            shape.set(i, group, LANES_BYTES);
            shape.set(4 + i, TILE_PAIRS, LANES_BYTES);
            shape.set(6 + i, VALUE_PAIRS, LANES_BYTES);
        }
        shape.set(2, group, PAIRS_BYTES);
        shape.set(3, group, VALUE_PAIRS * 4);
        shape_tiles(shape);
    }

    static void release() { release_tiles(); }

    // q: [group, dim] as pairs. k: N vectors of keys, each anywhere in a block of `tokens`, while what is `ahead` of them is
    // fetched. scores: [group][N vectors], rows `stride` apart.
    template <int N>
    static void scores(const float* q, int dim, const char* const* k, const ptrdiff_t* ahead, int tokens, float* scores,
                       int stride) {
        const int64_t k_bytes = tokens * 4;
        clear_tile<0>();
        if (N > 1) clear_tile<1>();
        for (int pair = 0; pair < dim / 2; pair += TILE_PAIRS) {
            const int64_t at = pair * k_bytes;
            load_tile<2>(q + pair, dim * 4);
            load_tile<4>(k[0] + at, k_bytes);
            add_tiles<0, 2, 4>();
            if (N > 1) load_tile<5>(k[N - 1] + at, k_bytes);
            if (N > 1) add_tiles<1, 2, 5>();
            for (int n = 0; n < N; ++n) {
                for (int i = 0; ahead[n] != 0 && i < TILE_PAIRS; ++i) prefetch<2>(k[n] + at + i * k_bytes + ahead[n]);
            }
        }
        store_tile<0>(scores, stride * 4);
        if (N > 1) store_tile<1>(scores + W, stride * 4);
    }

    // Adds the weighted values of `count` blocks of `tokens` at two vectors of dimensions from d on, while what is `ahead` of
    // them is fetched. weights: [group, count · tokens] as pairs, rows `stride` places apart. sums: [group], rows dim apart.
    static void values(const float* weights, int stride, const char* const* v, const ptrdiff_t* ahead, int count, int tokens,
                       int d, int dim, float* sums) {
        const int64_t v_bytes = dim * 4;
        load_tile<0>(sums, dim * 4);
        load_tile<1>(sums + W, dim * 4);
        for (int b = 0; b < count; ++b) {
            for (int pair = 0; pair < tokens / 2; pair += VALUE_PAIRS) {
                const char* const from = v[b] + pair * v_bytes + d * 4;
                load_tile<3>(weights + b * tokens / 2 + pair, stride * 4);
                load_tile<6>(from, v_bytes);
                add_tiles<0, 3, 6>();
                load_tile<7>(from + LANES_BYTES, v_bytes);
                add_tiles<1, 3, 7>();
                for (int i = 0; ahead[b] != 0 && i < VALUE_PAIRS; ++i) {
                    for (int at = 0; at < 2 * LANES_BYTES; at += LINE) prefetch<2>(from + i * v_bytes + at + ahead[b]);
                }
            }
        }
        store_tile<0>(sums, dim * 4);
        store_tile<1>(sums + W, dim * 4);
    }
};

#endif

}  // namespace
