// Linear layers, y = x · Wᵀ + bias, over weights that are packed once.
//
// Packed: panels of 32 outputs, in each the weights of one step of the input (of two, for 16-bit weights) side by side.
// A few rows are as fast as the panels can be read; many share each chunk of a panel while it is in the nearest cache.
// Rows are floats beside them, or stay pairs of bfloat16 where a product of pairs is one instruction.

#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "abi.h"
#include "dtypes.h"
#include "panel.h"
#include "scratch.h"
#include "threads.h"

namespace {

constexpr int LANES = 32;                             // of a panel in memory, at every level
constexpr int WHOLE_ROWS = MAX_ROWS * PANEL / LANES;  // rows whose sums with all lanes stay in registers
constexpr int FEW_ROWS = 2 * MAX_ROWS;                // up to here it does not pay to unpack half floats first
constexpr int CHUNK_BYTES = 16384;                    // of a panel: half of the nearest cache, beside what is fetched
constexpr int FEW_CHUNK_BYTES = 8192;                 // the same if they pass twice: so memory is asked sooner
constexpr int FEW_TILED_CHUNK_BYTES = 131072;         // and by tiles, whose sums are dearer to load than a chunk to fetch
constexpr int ROW_BLOCK = 256, GROUP = 4;             // rows and panels whose sums stay in the next one
constexpr ptrdiff_t AHEAD = 8192;                     // bytes from what is read to what is fetched

thread_local Scratch wide_rows;  // of who calls; `scratch` is for the pieces of the work

DISTKV_INLINE int smaller(int a, int b) { return a < b ? a : b; }

// What each of `parts` takes of all, so that nothing is left.
DISTKV_INLINE ptrdiff_t shared(ptrdiff_t all, ptrdiff_t parts) { return (all + parts - 1) / parts; }

// `count` stored numbers to floats, or to pairs for a dot, with zeros up to `room` numbers.
template <class S>
void widen(const typename S::Stored* from, int count, int room, float* to) {
    if constexpr (is_dot<S>) {
        to[room / S::steps - 1] = 0;
        std::memcpy(to, from, count * sizeof *from);
    } else {
        for (int i = 0; i < count; ++i) to[i] = S::one(from[i]);
        for (int i = count; i < room; ++i) to[i] = 0;
    }
}

// Sums of a panel, [rows][LANES], to rows of y.
template <class S>
void finish(const float* sums, int rows, int lanes, const typename S::Stored* bias, typename S::Stored* y,
            size_t y_stride) {
    for (int r = 0; r < rows; ++r, sums += LANES, y += y_stride) {
        if (bias != nullptr) {
            for (int i = 0; i < lanes; ++i) y[i] = S::stored(sums[i] + S::one(bias[i]));
        } else {
            for (int i = 0; i < lanes; ++i) y[i] = S::stored(sums[i]);
        }
    }
}

template <class S>
struct Linear {
    typedef typename S::Stored Stored;
    typedef WithDot<S> Product;
    static constexpr size_t LOAD_BYTES = LANES * sizeof(Stored) * S::steps;
    static constexpr int FLOATS = is_dot<Product> ? 1 : S::steps;  // of a row beside each load
    static constexpr int AT_ONCE = rows_at_once<Product>;
    static constexpr int ONCE = is_tiled<Product> ? AT_ONCE : WHOLE_ROWS;  // rows that pass a panel once
    static constexpr int FEW_CHUNK = is_tiled<Product> ? FEW_TILED_CHUNK_BYTES : FEW_CHUNK_BYTES;

    const Stored* x;
    size_t x_stride;
    int rows, k;
    const char* packed;
    const Stored* bias;
    int n;
    Stored* y;
    size_t y_stride;

    int loads() const { return (k + S::steps - 1) / S::steps; }
    // Of a row of floats: whole loads, and rows that do not all fall into the same places of a cache.
    size_t wide_stride() const { return loads() * FLOATS + 16; }
    int panels() const { return (n + LANES - 1) / LANES; }
    const char* load_at(int p, int load) const { return packed + (size_t(p) * loads() + load) * LOAD_BYTES; }
    const Stored* bias_at(int p) const { return bias == nullptr ? nullptr : bias + p * LANES; }

    void widen_rows(int first, int end, float* wide) const {
        for (int r = first; r < end; ++r, wide += wide_stride()) {
            widen<Product>(x + r * x_stride, k, loads() * S::steps, wide);
        }
    }

    void finish_panel(int p, const float* sums, int first, int count) const {
        finish<S>(sums, count, smaller(LANES, n - p * LANES), bias_at(p), y + first * y_stride + p * LANES, y_stride);
    }

    void run() const {
        const size_t wide_floats = smaller(rows, ROW_BLOCK) * wide_stride();
        wide_rows.begin(wide_floats);
        float* const wide = wide_rows.floats(wide_floats);
        const int fair = panels() / (4 * distkv_num_threads());  // panels of a piece, if each thread gets four pieces
        const int group = rows <= AT_ONCE || fair < 1 ? 1 : smaller(GROUP, fair);
        for (int first = 0; first < rows; first += ROW_BLOCK) {
            const int count = smaller(ROW_BLOCK, rows - first);
            parallel((count + 15) / 16, false, [&](int i) {
                widen_rows(first + i * 16, smaller(first + i * 16 + 16, first + count), wide + i * 16 * wide_stride());
            });
            parallel((panels() + group - 1) / group, false, [&](int i) {
                multiply(i * group, smaller(i * group + group, panels()), wide, first, count);
            });
        }
    }

    // Rows [first, first + count) of y at the outputs of some panels.
    void multiply(int first_panel, int end_panel, const float* wide, int first, int count) const {
        const size_t panel_sums = count * LANES, num_sums = panel_sums * (end_panel - first_panel);
        scratch.begin(CHUNK_BYTES + num_sums);
        float* const unpacked = scratch.floats(CHUNK_BYTES);
        float* const sums = scratch.floats(num_sums);
        const bool are_few = count <= (is_tiled<Product> ? 2 * AT_ONCE : MAX_ROWS);  // they pass twice
        const int chunk = count <= ONCE ? loads() : (are_few ? FEW_CHUNK : CHUNK_BYTES) / LOAD_BYTES;
        for (int start = 0; start < loads(); start += chunk) {
            const int some = smaller(chunk, loads() - start);
            for (int p = first_panel; p < end_panel; ++p) {
                const bool is_last = p + 1 == end_panel;
                const char* const next = !is_last                 ? load_at(p + 1, start)
                                         : start + some < loads() ? load_at(first_panel, start + some)
                                                                  : load_at(end_panel, 0);
                multiply_chunk(wide + start * FLOATS, count, load_at(p, start), some,
                               sums + (p - first_panel) * panel_sums, start > 0, unpacked, next);
            }
        }
        for (int p = first_panel; p < end_panel; ++p) finish_panel(p, sums + (p - first_panel) * panel_sums, first, count);
    }

    // Rows of x times a chunk of a panel that begins at b. unpacked: room for its floats. next: what is read after it.
    void multiply_chunk(const float* wide, int count, const char* b, int some, float* sums, bool add, float* unpacked,
                        const char* next) const {
        const size_t stride = wide_stride();
        if (!is_tiled<Product> && count <= WHOLE_ROWS) {
            constexpr int N = LANES / W;
            Anywhere<N> lanes{{}, {}, some};  // not Following: one row takes a tenth longer by one pointer with 16 registers
            for (int n = 0; n < N; ++n) lanes.b[n] = b + n * W * 4, lanes.ahead[n] = AHEAD;
            panel_rows<Product, N, WHOLE_ROWS>(count, wide, stride, &lanes, 1, LOAD_BYTES, sums, LANES, add);
            return;
        }
        // Each pass over the chunk fetches its part of the next one, so that memory is busy all the time.
        const ptrdiff_t passes = (count + AT_ONCE - 1) / AT_ONCE * (LANES / PANEL);
        for (int lane = 0; lane < LANES; lane += PANEL, b += PANEL * 4) {
            const char* const ahead = count <= ONCE ? b + AHEAD : next + some * LOAD_BYTES * lane / LANES;
            if (std::is_same<S, F16>::value && count > FEW_ROWS) {
                unpack(b, some, unpacked);
                const Following<2> lanes{reinterpret_cast<const char*>(unpacked), some * S::steps, ahead,
                                         shared(LOAD_BYTES / S::steps, passes)};
                panel_product<F32>(count, wide, stride, lanes, PANEL * sizeof(float), sums + lane, LANES, add);
            } else {
                const Following<2> lanes{b, some, ahead, shared(LOAD_BYTES, passes)};
                panel_product<Product>(count, wide, stride, lanes, LOAD_BYTES, sums + lane, LANES, add);
            }
        }
    }

    static void unpack(const char* b, int some, float* to) {
        for (int s = 0; s < some; ++s, b += LOAD_BYTES) {
            DISTKV_UNROLL for (int v = 0; v < 2; ++v) {
                DISTKV_UNROLL for (int t = 0; t < S::steps; ++t) {
                    store(to + (s * S::steps + t) * PANEL + v * W, S::read(b + v * W * 4, t));
                }
            }
        }
    }
};

// [n, k] to panels, by 32-bit units: a float or two 16-bit numbers.
template <class Stored>
void pack_linear(const Stored* w, size_t w_stride, int n, int k, uint32_t* packed) {
    constexpr int steps = 4 / sizeof(Stored);
    const int units = (k + steps - 1) / steps, whole = k / steps;
    parallel((n + LANES - 1) / LANES, false, [&](int p) {
        uint32_t* const to = packed + static_cast<size_t>(p) * units * LANES;
        const int lanes = smaller(LANES, n - p * LANES);
        for (int start = 0; start < units; start += 16) {
            const int end = smaller(start + 16, units);
            for (int lane = 0; lane < lanes; ++lane) {
                const Stored* const from = w + (static_cast<size_t>(p) * LANES + lane) * w_stride;
                for (int u = start; u < smaller(end, whole); ++u) std::memcpy(to + u * LANES + lane, from + u * steps, 4);
                if (end > whole) {
                    uint32_t unit = 0;
                    std::memcpy(&unit, from + whole * steps, sizeof(Stored));
                    to[whole * LANES + lane] = unit;
                }
            }
            for (int u = start; u < end; ++u) {
                for (int lane = lanes; lane < LANES; ++lane) to[u * LANES + lane] = 0;
            }
        }
    });
}

}  // namespace

// W [n, k] of `bytes` (2 or 4) per number, rows w_stride numbers apart, into `packed`: ⌈n/32⌉ · ⌈k·bytes/4⌉ · 128 bytes.
DISTKV_API(void, linear_pack)(int bytes, const void* w, int64_t w_stride, int n, int k, void* packed) {
    if (bytes == 2) {
        pack_linear(static_cast<const uint16_t*>(w), w_stride, n, k, static_cast<uint32_t*>(packed));
    } else {
        pack_linear(static_cast<const uint32_t*>(w), w_stride, n, k, static_cast<uint32_t*>(packed));
    }
}

// y [rows, n] = x [rows, k] · Wᵀ + bias [n] or nothing; all of one dtype: 0 float32, 1 bfloat16, 2 float16.
// Returns 0, or 1 when there was no memory.
DISTKV_API(int, linear)(int dtype, const void* x, int64_t x_stride, int rows, int k, const void* packed,
                        const void* bias, int n, void* y, int64_t y_stride) {
    try {
        of_dtype(dtype, [&](auto storage) {
            typedef decltype(storage) S;
            typedef typename S::Stored Stored;
            const Linear<S> call{static_cast<const Stored*>(x),    static_cast<size_t>(x_stride),   rows, k,
                                 static_cast<const char*>(packed), static_cast<const Stored*>(bias), n,
                                 static_cast<Stored*>(y),          static_cast<size_t>(y_stride)};
            call.run();
        });
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
