// Micro-attention of one query row per sequence, straight from the pool: a decode step reads every key and value once.
//
// Keys are taken in tiles. While the keys of a tile are read, its values are fetched, and while its values are read the
// keys of what comes next, so that memory is busy although blocks lie anywhere.

#pragma once

#include "attend.h"
#include "panel.h"
#include "scratch.h"
#include "softmax.h"

namespace {

constexpr int ONE_TILE = 64;  // keys of a tile, unless a block is larger

// Σ over rows of `weights` of N vectors of V, some blocks' worth; the last token of an odd number stands alone.
template <class S, int N>
DISTKV_INLINE void add_values(int rows, const float* weights, int weights_stride, const char* v, int dim, int tokens,
                              float* out, ptrdiff_t ahead) {
    const size_t bytes = size_t(dim) * 4;
    panel_rows<S, N>(rows, weights, weights_stride, v, bytes, tokens / S::steps, out, dim, true, ahead);
    if (tokens % S::steps == 0) return;
    for (int n = 0; n < N; ++n) {
        Vec lanes[S::steps];
        S::read(v + tokens / S::steps * bytes + n * W * 4, lanes);
        for (int r = 0; r < rows; ++r) {
            const float* const row = weights + r * weights_stride;
            float last = row[tokens - 1];
            if constexpr (is_dot<S>) {
                uint32_t pair;
                std::memcpy(&pair, row + tokens / 2, 4);
                last = S::one(static_cast<uint16_t>(pair));
            }
            float* const to = out + r * dim + n * W;
            store(to, fma(splat(last), lanes[0], load(to)));
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
        blocks_ = std::max(1, ONE_TILE / call.block_tokens);
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
        for (int64_t block = item_.blocks.first; block < item_.blocks.end; block += blocks_) {
            const int count = static_cast<int>(std::min<int64_t>(blocks_, item_.blocks.end - block));
            for (int head = 0; head < item_.heads; ++head) {
                scores(block, count, head);
                const int first_row = head * group_;
                const int keys = count * call_.block_tokens;
                for (int r = 0; r < group_; ++r) {
                    float* const row = scores_ + r * stride_;
                    add_scores(row, keys, states_[first_row + r], sums_ + size_t(first_row + r) * call_.dim, call_.dim);
                    if (is_dot<S>) to_pairs(row, keys);
                }
                values(block, count, head);
            }
        }
        for (int r = 0; r < item_.heads * group_; ++r) {
            const size_t at = size_t(item_.row) * call_.heads + item_.head * group_ + r;
            finish_row(states_[r], sums_ + size_t(r) * call_.dim, call_.dim, item_.out + at * call_.dim, item_.lse + at);
        }
    }

  private:
    void scores(int64_t block, int count, int head) {
        for (int b = 0; b < count; ++b) {
            const int64_t slot = item_.seq->slots[block + b], start = item_.seq->positions[block + b];
            const char* const k = call_.k_block(slot, item_.head + head);
            const ptrdiff_t ahead = call_.v_block(slot, item_.head + head) - k;
            for (int r = 0; r < group_; r += MAX_ROWS) {
                const int rows = std::min(MAX_ROWS, group_ - r);
                const float* const q = q_ + size_t(head * group_ + r) * call_.dim;
                float* const to = scores_ + r * stride_ + b * call_.block_tokens;
                lanes(rows, q, k, to, r == 0 ? ahead : 0);
            }
            const Seen keys = seen(call_, *item_.seq, start, position_);
            for (int r = 0; r < group_; ++r) {
                float* const row = scores_ + r * stride_ + b * call_.block_tokens;
                if (is_dot<S>) {
                    for (int i = 0; i < call_.block_tokens; ++i) row[i] *= call_.scale;
                }
                if (call_.alibi != nullptr) {
                    const float slope = call_.alibi[(item_.head + head) * group_ + r];
                    for (int i = 0; i < call_.block_tokens; ++i) {
                        row[i] += slope * static_cast<float>(start + i - position_);
                    }
                }
                if (!keys.all(call_.block_tokens)) keep_only(row, call_.block_tokens, keys.first, keys.end);
            }
        }
    }

    void lanes(int rows, const float* q, const char* k, float* to, ptrdiff_t ahead) {
        const size_t bytes = size_t(call_.block_tokens) * 4;
        const int loads = call_.dim / S::steps;
        int lane = 0;
        for (; lane + 2 * W <= call_.block_tokens; lane += 2 * W) {
            panel_rows<S, 2>(rows, q, call_.dim, k + lane * 4, bytes, loads, to + lane, stride_, false, ahead);
        }
        if (lane < call_.block_tokens) {
            panel_rows<S, 1>(rows, q, call_.dim, k + lane * 4, bytes, loads, to + lane, stride_, false, ahead);
        }
    }

    void values(int64_t block, int count, int head) {
        for (int b = 0; b < count; ++b) {
            const int64_t slot = item_.seq->slots[block + b], start = item_.seq->positions[block + b];
            const char* const v = call_.v_block(slot, item_.head + head);
            const char* const next = next_keys(block, b, head);
            const ptrdiff_t ahead = next == nullptr ? 0 : next - v;
            const int tokens = seen(call_, *item_.seq, start, position_).end;
            for (int r = 0; r < group_; r += MAX_ROWS) {
                const int rows = std::min(MAX_ROWS, group_ - r);
                const float* const weights = scores_ + r * stride_ + b * call_.block_tokens / (is_dot<S> ? 2 : 1);
                float* const sums = sums_ + size_t(head * group_ + r) * call_.dim;
                int d = 0;
                if (rows * 4 <= 2 * MAX_ROWS) {
                    for (; d + 4 * W <= call_.dim; d += 4 * W) {
                        add_values<S, 4>(rows, weights, stride_, v + d * 4, call_.dim, tokens, sums + d, r ? 0 : ahead);
                    }
                }
                for (; d + 2 * W <= call_.dim; d += 2 * W) {
                    add_values<S, 2>(rows, weights, stride_, v + d * 4, call_.dim, tokens, sums + d, r ? 0 : ahead);
                }
                if (d < call_.dim) {
                    add_values<S, 1>(rows, weights, stride_, v + d * 4, call_.dim, tokens, sums + d, r ? 0 : ahead);
                }
            }
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
