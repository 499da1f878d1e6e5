// Micro-attention of one query row per sequence, straight from the pool: a decode step reads every key and value once.
//
// Keys are taken in tiles. While the keys of a tile are read, its values are fetched, and while its values are read the
// keys of what comes next, so that memory is busy although blocks lie anywhere.

#pragma once

#include "attend.h"
#include "attend_tiles.h"
#include "panel.h"
#include "scratch.h"
#include "softmax.h"

namespace {

constexpr int ONE_TILE = 64;     // keys of a tile at most, unless a block is larger
constexpr int TILE_NUMBERS = 4096;  // of its keys: they, the values and what is fetched ahead share the nearest cache

constexpr int MOST_BLOCKS = ONE_TILE / W;  // of a tile

// The values of a tile: where each block's are, and how many tokens of it exist.
struct TileValues {
    const char* v[MOST_BLOCKS];
    ptrdiff_t ahead[MOST_BLOCKS];
    int tokens[MOST_BLOCKS];
    int count = 0;
};

// Adds the weighted values of a tile at N vectors of dimensions; of an odd number of tokens the last stands alone.
template <class S, int N>
inline void add_values(int rows, const float* weights, int weights_stride, const TileValues& tile, int dim, int d,
                       float* sums) {
    const size_t bytes = size_t(dim) * 4;
    Following<N> lanes[MOST_BLOCKS];
    for (int b = 0; b < tile.count; ++b) {
        const char* const v = tile.v[b] + d * 4;
        lanes[b] = {v, tile.tokens[b] / S::steps, v + tile.ahead[b], tile.ahead[b] == 0 ? 0 : ptrdiff_t(bytes)};
    }
    panel_rows<S, N>(rows, weights, weights_stride, lanes, tile.count, bytes, sums + d, dim, true);
    const int tokens = tile.tokens[tile.count - 1];
    if (tokens % S::steps == 0) return;
    const Following<N>& last = lanes[tile.count - 1];
    int step = 0;  // of the weights
    for (int b = 0; b < tile.count; ++b) step += tile.tokens[b] / S::steps;
    for (int n = 0; n < N; ++n) {
        const Vec values = S::read(last.at(n) + last.loads * bytes, 0);
        for (int r = 0; r < rows; ++r) {
            const float* const row = weights + r * weights_stride;
            float weight = row[step * S::steps];
            if constexpr (is_dot<S>) {
                uint32_t pair;
                std::memcpy(&pair, row + step, 4);
                weight = S::one(static_cast<uint16_t>(pair));
            }
            float* const to = sums + r * dim + d + n * W;
            store(to, fma(splat(weight), values, load(to)));
        }
    }
}

template <class S>
class OneRow {
  public:
    // What a machine's registers hold of a group; larger ones are taken in turns, and many turns are better unpacked.
    static bool fits(const AttendCall& call) {
        return call.block_tokens % W == 0 && call.dim % W == 0 && call.pair == S::steps && call.group() <= 2 * MAX_ROWS;
    }

    OneRow(const AttendCall& call, const AttendItem& item) : call_(call), item_(item) {
        group_ = call.group();
        const int numbers = by_tiles() ? 2 * TILE_NUMBERS : TILE_NUMBERS;  // tiles are fetched no nearer than the next cache
        blocks_ = std::max(1, std::min(ONE_TILE, numbers / call.dim) / call.block_tokens);
        stride_ = blocks_ * call.block_tokens;
        const int rows = item.heads * group_;
        scratch.begin(size_t(rows) * call.dim * 2 + size_t(group_) * stride_ + size_t(rows) * 2);
        q_ = scratch.floats(size_t(rows) * call.dim);
        sums_ = scratch.floats(size_t(rows) * call.dim);
        scores_ = scratch.floats(size_t(group_) * stride_);
        states_ = reinterpret_cast<RowState*>(scratch.floats(size_t(rows) * 2));
        for (int r = 0; r < rows; ++r) {
            float* const q = q_ + size_t(r) * call.dim;
            call.read_q(item.row, item.head * group_ + r, is_dot<S> ? 1.0f : call.scale, q);
            if (is_dot<S>) to_pairs(q, call.dim);
            states_[r] = RowState();
        }
        std::fill(sums_, sums_ + size_t(rows) * call.dim, 0.0f);
        position_ = call.q_positions[item.row];
    }

    void run() {
        if constexpr (is_tiled<S>) {
            if (by_tiles()) AttentionTiles<S>::shape(group_);
        }
        for (int64_t block = item_.blocks.first; block < item_.blocks.end; block += blocks_) {
            const int count = static_cast<int>(std::min<int64_t>(blocks_, item_.blocks.end - block));
            for (int head = 0; head < item_.heads; ++head) {
                scores(block, count, head);
                const int first_row = head * group_;
                const int keys = count * call_.block_tokens;
                for (int r = 0; r < group_; ++r) {
                    float* const row = scores_ + r * stride_;
                    float* const sums = sums_ + size_t(first_row + r) * call_.dim;
                    add_scores<S>(row, keys, late_scale<S>(call_), states_[first_row + r], sums, call_.dim);
                }
                values(block, count, head);
            }
        }
        if constexpr (is_tiled<S>) {
            if (by_tiles()) AttentionTiles<S>::release();
        }
        for (int r = 0; r < item_.heads * group_; ++r) {
            const size_t at = size_t(item_.row) * call_.heads + item_.head * group_ + r;
            finish_row(states_[r], sums_ + size_t(r) * call_.dim, call_.dim, item_.out + at * call_.dim, item_.lse + at);
        }
    }

  private:
    // Whether several heads share keys, whose products vectors take longer for, and tiles are as the blocks are.
    bool by_tiles() const {
        return is_tiled<S> && group_ > 1 && group_ <= MAX_ROWS && call_.dim % 32 == 0 && call_.block_tokens % 16 == 0;
    }

    void scores(int64_t block, int count, int head) {
        const int tokens = call_.block_tokens;
        for (int r = 0; r < group_; r += MAX_ROWS) {
            const int rows = std::min(MAX_ROWS, group_ - r);
            const float* const q = q_ + size_t(head * group_ + r) * call_.dim;
            float* const to = scores_ + r * stride_;
            const int vectors = count * tokens / W;
            int at = 0;
            for (; at + 2 <= vectors; at += 2) keys<2>(block, at, head, rows, q, to, r == 0);
            if (at < vectors) keys<1>(block, at, head, rows, q, to, r == 0);
        }
        for (int b = 0; b < count; ++b) {
            const int64_t start = item_.seq->positions[block + b];
            const Seen keys = seen(call_, *item_.seq, start, position_);
            for (int r = 0; r < group_; ++r) {
                float* const row = scores_ + r * stride_ + b * tokens;
                if (call_.alibi != nullptr) {
                    add_alibi<S>(call_, row, call_.alibi[(item_.head + head) * group_ + r], start - position_);
                }
                if (!keys.all(tokens)) keep_only(row, tokens, keys.first, keys.end);
            }
        }
    }

    // Scores of N vectors of keys from the tile's vector `at` on; they may be in different blocks.
    template <int N>
    void keys(int64_t block, int at, int head, int rows, const float* q, float* to, bool fetch) {
        Anywhere<N> lanes;
        for (int n = 0; n < N; ++n) {
            const int lane = (at + n) * W;
            const int64_t slot = item_.seq->slots[block + lane / call_.block_tokens];
            const char* const k = call_.k_block(slot, item_.head + head);
            lanes.b[n] = k + lane % call_.block_tokens * 4;
            lanes.ahead[n] = fetch ? call_.v_block(slot, item_.head + head) - k : 0;
        }
        lanes.loads = call_.dim / S::steps;
        if constexpr (is_tiled<S>) {
            if (by_tiles()) {
                AttentionTiles<S>::template scores<N>(q, call_.dim, lanes.b, lanes.ahead, call_.block_tokens, to + at * W,
                                                      stride_);
                return;
            }
        }
        panel_rows<S, N>(rows, q, call_.dim, &lanes, 1, size_t(call_.block_tokens) * 4, to + at * W, stride_, false);
    }

    void values(int64_t block, int count, int head) {
        TileValues tile;
        for (int b = 0; b < count; ++b) {
            const int64_t slot = item_.seq->slots[block + b], start = item_.seq->positions[block + b];
            const int tokens = seen(call_, *item_.seq, start, position_).end;
            if (tokens == 0) break;
            tile.v[b] = call_.v_block(slot, item_.head + head);
            const char* const next = next_keys(block, b, head);
            tile.ahead[b] = next == nullptr ? 0 : next - tile.v[b];
            tile.tokens[b] = tokens;
            tile.count = b + 1;
        }
        if (tile.count == 0) return;
        if constexpr (is_tiled<S>) {
            if (by_tiles()) {
                values_by_tiles(tile, sums_ + size_t(head) * group_ * call_.dim);
                return;
            }
        }
        for (int r = 0; r < group_; r += MAX_ROWS) {
            const int rows = std::min(MAX_ROWS, group_ - r);
            const float* const weights = scores_ + r * stride_;
            float* const sums = sums_ + size_t(head * group_ + r) * call_.dim;
            if (r > 0) std::fill(tile.ahead, tile.ahead + tile.count, 0);
            int d = 0;
            if (rows * 4 <= 2 * MAX_ROWS) {
                for (; d + 4 * W <= call_.dim; d += 4 * W) {
                    add_values<S, 4>(rows, weights, stride_, tile, call_.dim, d, sums);
                }
            }
            for (; d + 2 * W <= call_.dim; d += 2 * W) {
                add_values<S, 2>(rows, weights, stride_, tile, call_.dim, d, sums);
            }
            if (d < call_.dim) add_values<S, 1>(rows, weights, stride_, tile, call_.dim, d, sums);
        }
    }

    // The last block may have values that do not exist: these must not be multiplied, not even by 0.
    void values_by_tiles(const TileValues& tile, float* sums) {
        const int tokens = call_.block_tokens, last = tile.count - 1;
        const bool is_cut = tile.tokens[last] < tokens;
        for (int d = 0; d < call_.dim; d += 2 * W) {
            AttentionTiles<S>::values(scores_, stride_, tile.v, tile.ahead, tile.count - is_cut, tokens, d, call_.dim, sums + d);
        }
        if (!is_cut) return;
        TileValues rest;
        rest.v[0] = tile.v[last], rest.ahead[0] = tile.ahead[last], rest.tokens[0] = tile.tokens[last], rest.count = 1;
        for (int d = 0; d < call_.dim; d += 2 * W) {
            add_values<S, 2>(group_, scores_ + last * tokens / S::steps, stride_, rest, call_.dim, d, sums);
        }
    }

    // Block b of the tile that is read after this head's values; null at the end.
    const char* next_keys(int64_t block, int b, int head) const {
        if (head + 1 < item_.heads) return call_.k_block(item_.seq->slots[block + b], item_.head + head + 1);
        const int64_t next = block + blocks_ + b;
        return next < item_.blocks.end ? call_.k_block(item_.seq->slots[next], item_.head) : nullptr;
    }

    const AttendCall& call_;
    const AttendItem& item_;
    int group_, blocks_, stride_;
    int64_t position_;
    float *q_, *sums_, *scores_;
    RowState* states_;
};

}  // namespace
