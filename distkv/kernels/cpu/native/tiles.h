// Products of tiles of bfloat16 (AMX): up to 16 rows of 32 numbers times 32 rows of 16, in one instruction.
//
// Eight registers hold a tile each. The right side is stored by pairs, 16 of them and a vector of lanes a tile, as panels
// and the blocks of a pool are.

#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

#if defined(DISTKV_TILES)

namespace {

constexpr int TILE_ROWS = 16, TILE_PAIRS = 16, TILE_LANES = W;
constexpr int BLOCK_ROWS = 2 * TILE_ROWS;  // that are computed side by side
constexpr int PAIRS_BYTES = TILE_PAIRS * 4, LANES_BYTES = TILE_LANES * 4;  // of a row of the left side, of the others

// Rows of each of the eight tiles and bytes of each row; nothing is what is not set.
struct alignas(64) TileShape {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int tile, int count, int bytes) {
        rows[tile] = static_cast<uint8_t>(count);
        row_bytes[tile] = static_cast<uint16_t>(count > 0 ? bytes : 0);
    }
};

#if defined(__AMX_BF16__)

// Written out, for the compiler's own do not say that they read and write memory.
DISTKV_INLINE void shape_tiles(const TileShape& shape) { asm volatile("ldtilecfg %0" ::"m"(shape) : "memory"); }
DISTKV_INLINE void release_tiles() { asm volatile("tilerelease" ::: "memory"); }
template <int T>
DISTKV_INLINE void clear_tile() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int T>
DISTKV_INLINE void load_tile(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T>
DISTKV_INLINE void store_tile(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
}
template <int SUM, int LEFT, int RIGHT>
DISTKV_INLINE void add_tiles() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(LEFT), "i"(RIGHT));
}

#else

// The same in ordinary code: what tests compile, for machines without them.
struct Tiles {
    static constexpr int ROW = 64;
    TileShape shape;
    char numbers[8][TILE_ROWS * ROW];
};
thread_local Tiles tiles;

inline void shape_tiles(const TileShape& shape) {
    tiles.shape = shape;
    std::memset(tiles.numbers, 0, sizeof tiles.numbers);
}
inline void release_tiles() { shape_tiles({}); }
template <int T>
void clear_tile() {
    std::memset(tiles.numbers[T], 0, sizeof tiles.numbers[T]);
}
template <int T>
void load_tile(const void* from, int64_t stride) {
    clear_tile<T>();
    for (int r = 0; r < tiles.shape.rows[T]; ++r) {
        std::memcpy(tiles.numbers[T] + r * tiles.ROW, static_cast<const char*>(from) + r * stride, tiles.shape.row_bytes[T]);
    }
}
template <int T>
void store_tile(void* to, int64_t stride) {
    for (int r = 0; r < tiles.shape.rows[T]; ++r) {
        std::memcpy(static_cast<char*>(to) + r * stride, tiles.numbers[T] + r * tiles.ROW, tiles.shape.row_bytes[T]);
    }
}
template <int SUM, int LEFT, int RIGHT>
void add_tiles() {
    for (int r = 0; r < tiles.shape.rows[LEFT]; ++r) {
        for (int lane = 0; lane < TILE_LANES; ++lane) {
            float sum;
            char* const at = tiles.numbers[SUM] + r * tiles.ROW + lane * 4;
            std::memcpy(&sum, at, 4);
            for (int pair = 0; pair < tiles.shape.row_bytes[LEFT] / 4; ++pair) {
                uint16_t a[2], b[2];
                std::memcpy(a, tiles.numbers[LEFT] + r * tiles.ROW + pair * 4, 4);
                std::memcpy(b, tiles.numbers[RIGHT] + pair * tiles.ROW + lane * 4, 4);
                sum += BF16::one(a[0]) * BF16::one(b[0]) + BF16::one(a[1]) * BF16::one(b[1]);
            }
            std::memcpy(at, &sum, 4);
        }
    }
}

#endif

// Of a product: sums (i, j) are tile 2 i + j, rows i of the left side 4 + i, vector j of the right side 6 + j.
inline TileShape product_shape(int first, int second, int pairs) {
    TileShape shape;
    for (int i = 0; i < 2; ++i) {
        const int rows = i == 0 ? first : second;
        shape.set(2 * i, rows, LANES_BYTES);
        shape.set(2 * i + 1, rows, LANES_BYTES);
        shape.set(4 + i, rows, pairs * 4);
        shape.set(6 + i, pairs, LANES_BYTES);
    }
    return shape;
}

// `steps` times `pairs` pairs of up to two tiles of rows, TWO or not, times two vectors of lanes; see tile_product.
template <bool TWO>
void tile_steps(const char* a, int64_t a_bytes, const char* b, int64_t b_bytes, int pairs, int steps, const char* ahead,
                ptrdiff_t ahead_step, char* c, int64_t c_bytes, bool add) {
    char* const c2 = c + TILE_ROWS * c_bytes;
    if (add) {
        load_tile<0>(c, c_bytes);
        load_tile<1>(c + LANES_BYTES, c_bytes);
        if (TWO) load_tile<2>(c2, c_bytes);
        if (TWO) load_tile<3>(c2 + LANES_BYTES, c_bytes);
    } else {
        clear_tile<0>();
        clear_tile<1>();
        if (TWO) clear_tile<2>();
        if (TWO) clear_tile<3>();
    }
    for (int step = 0; step < steps; ++step) {
        load_tile<6>(b, b_bytes);
        load_tile<4>(a, a_bytes);
        add_tiles<0, 4, 6>();
        load_tile<7>(b + LANES_BYTES, b_bytes);
        add_tiles<1, 4, 7>();
        if (TWO) {
            load_tile<5>(a + TILE_ROWS * a_bytes, a_bytes);
            add_tiles<2, 5, 6>();
            add_tiles<3, 5, 7>();
        }
        for (ptrdiff_t i = 0; i < pairs * ahead_step; i += LINE) prefetch<2>(ahead + i);
        a += PAIRS_BYTES;
        b += pairs * b_bytes;
        ahead += pairs * ahead_step;
    }
    store_tile<0>(c, c_bytes);
    store_tile<1>(c + LANES_BYTES, c_bytes);
    if (TWO) store_tile<2>(c2, c_bytes);
    if (TWO) store_tile<3>(c2 + LANES_BYTES, c_bytes);
}

// c [rows][two vectors] (+)= a [rows][loads] · b [loads][two vectors], a and b by pairs. What is at `ahead` is fetched meanwhile,
// ahead_step further for each load and block of 32 rows.
inline void tile_product(int rows, const float* a, size_t a_stride, const char* b, int loads, size_t b_bytes,
                         const char* ahead, ptrdiff_t ahead_step, float* c, size_t c_stride, bool add) {
    const int64_t a_bytes = a_stride * 4, c_bytes = c_stride * 4;
    for (int load = 0; load < loads;) {  // whole tiles of pairs, then what is left
        const int steps = (loads - load) / TILE_PAIRS, pairs = steps > 0 ? TILE_PAIRS : loads - load;
        const int some = steps > 0 ? steps * pairs : pairs;
        int shaped = 0;  // rows that the tiles are for
        for (int row = 0; row < rows; row += BLOCK_ROWS) {
            const int count = rows - row < BLOCK_ROWS ? rows - row : BLOCK_ROWS, first = count < TILE_ROWS ? count : TILE_ROWS;
            if (count != shaped) shape_tiles(product_shape(first, count - first, pairs));
            shaped = count;
            const auto work = count > first ? &tile_steps<true> : &tile_steps<false>;
            work(reinterpret_cast<const char*>(a + row * a_stride + load), a_bytes, b + load * b_bytes, b_bytes, pairs,
                 some / pairs, ahead + (row / BLOCK_ROWS * loads + load) * ahead_step, ahead_step,
                 reinterpret_cast<char*>(c + row * c_stride), c_bytes, add || load > 0);
        }
        load += some;
    }
    release_tiles();
}

}  // namespace

#endif
