// Micro-attention of many query rows, or of any shape at all: a tile of keys and values is unpacked once and then used by
// all rows, as two matrix products; to floats, or side by side as the pairs that they are if S is a dot.

#pragma once

#include "attend.h"
#include "panel.h"
#include "scratch.h"
#include "softmax.h"

namespace {

constexpr int round_up(int count, int unit) { return (count + unit - 1) / unit * unit; }

template <class S>
class ManyRows {
    static constexpr int STEPS = is_dot<S> ? S::steps : 1;  // of what a place of a panel or row holds

    static constexpr int TILE_KEYS = is_tiled<S> ? 256 : 128;  // of a tile, unless a block is larger

  public:
    // Query rows (query × head of the group) of an item: the more, the fewer tiles are unpacked, and the longer it takes.
    static constexpr int MOST_ROWS = is_tiled<S> ? 8 * BLOCK_ROWS : 12 * MAX_ROWS;

    static bool fits(const AttendCall& call) {
        return !is_dot<S> || (call.pair == S::steps && call.block_tokens % W == 0 && call.dim % W == 0);
    }

    ManyRows(const AttendCall& call, const AttendItem& item) : call_(call), item_(item) {
        const auto bounds = std::minmax_element(call.q_positions + item.row, call.q_positions + item.row + item.rows);
        low_ = *bounds.first;
        high_ = *bounds.second;
        group_ = call.group();
        rows_ = item.rows * group_;
        dim_ = round_up(call.dim, PANEL);
        blocks_ = std::max(1, TILE_KEYS / call.block_tokens);
        tokens_ = blocks_ * call.block_tokens;
        lanes_ = round_up(tokens_, PANEL);
        scratch.begin(size_t(rows_) * (dim_ * 2 + lanes_ + 2) + size_t(lanes_) * call.dim + size_t(tokens_) * dim_);
        q_ = scratch.floats(size_t(rows_) * dim_);
        sums_ = scratch.floats(size_t(rows_) * dim_);
        scores_ = scratch.floats(size_t(rows_) * lanes_);
        states_ = reinterpret_cast<RowState*>(scratch.floats(size_t(rows_) * 2));
        k_ = scratch.floats(size_t(lanes_) * call.dim);
        v_ = scratch.floats(size_t(tokens_) * dim_);
    }

    void run() {
        for (int head = item_.head; head < item_.head + item_.heads; ++head) one_head(head);
    }

  private:
    void one_head(int head) {
        for (int r = 0; r < rows_; ++r) {
            float* const q = q_ + size_t(r) * dim_;
            call_.read_q(item_.row + r / group_, head * group_ + r % group_, is_dot<S> ? 1.0f : call_.scale, q);
            if (is_dot<S>) to_pairs(q, call_.dim);
            states_[r] = RowState();
        }
        std::fill(sums_, sums_ + size_t(rows_) * dim_, 0.0f);
        for (int64_t block = item_.blocks.first; block < item_.blocks.end; block += blocks_) {
            tile(block, static_cast<int>(std::min<int64_t>(blocks_, item_.blocks.end - block)), head);
        }
        for (int r = 0; r < rows_; ++r) {
            const size_t at = size_t(item_.row + r / group_) * call_.heads + head * group_ + r % group_;
            finish_row(states_[r], sums_ + size_t(r) * dim_, call_.dim, item_.out + at * call_.dim, item_.lse + at);
        }
    }

    void tile(int64_t block, int count, int head) {
        const int tokens = count * call_.block_tokens, lanes = round_up(tokens, PANEL);
        for (int b = 0; b < count; ++b) {
            const int64_t slot = item_.seq->slots[block + b];
            const int64_t exist = item_.seq->num_keys - item_.seq->positions[block + b];
            unpack_k(call_.k_block(slot, head), b * call_.block_tokens);
            unpack_v(call_.v_block(slot, head), b * call_.block_tokens, int(std::min<int64_t>(exist, call_.block_tokens)));
        }
        for (int lane = 0; lane < lanes; lane += PANEL) {
            const Following<2> keys{reinterpret_cast<const char*>(place(k_, call_.dim, lane, 0)), call_.dim / STEPS};
            panel_product<Product>(rows_, q_, dim_, keys, PANEL * 4, scores_ + lane, lanes_, false);
        }
        const bool all = call_.alibi == nullptr && all_seen(block, count);
        for (int r = 0; r < rows_; ++r) {
            float* const row = scores_ + size_t(r) * lanes_;
            if (!all) mask(row, block, count, head, r);
            for (int i = tokens; i < lanes; ++i) row[i] = NOTHING;
            add_scores<S>(row, lanes, late_scale<S>(call_), states_[r], sums_ + size_t(r) * dim_, dim_);
        }
        for (int d = 0; d < dim_; d += PANEL) {
            const Following<2> values{reinterpret_cast<const char*>(place(v_, tokens_, d, 0)), tokens / STEPS};
            panel_product<Product>(rows_, scores_, lanes_, values, PANEL * 4, sums_ + d, dim_, true);
        }
    }

    // Whether every row sees every key of a tile.
    bool all_seen(int64_t block, int count) const {
        const AttendSeq& seq = *item_.seq;
        return seen(call_, seq, seq.positions[block], high_).first == 0 &&
               seen(call_, seq, seq.positions[block + count - 1], low_).end == call_.block_tokens;
    }

    // ALiBi, and what row r does not see of a tile.
    void mask(float* row, int64_t block, int count, int head, int r) const {
        const int64_t position = call_.q_positions[item_.row + r / group_];
        for (int b = 0; b < count; ++b, row += call_.block_tokens) {
            const int64_t start = item_.seq->positions[block + b];
            if (call_.alibi != nullptr) {
                const float slope = call_.alibi[head * group_ + r % group_];
                add_alibi<S>(call_, row, slope, start - position);
            }
            const Seen keys = seen(call_, *item_.seq, start, position);
            if (!keys.all(call_.block_tokens)) keep_only(row, call_.block_tokens, keys.first, keys.end);
        }
    }

    // Where lane `lane` of step `step` is in panels of `steps` steps each.
    static float* place(float* panels, int steps, int lane, int step) {
        return panels + size_t(lane / PANEL) * (steps / STEPS) * PANEL + size_t(step / STEPS) * PANEL + lane % PANEL;
    }

    // Stored [dim / pair][P][pair]; becomes panels over the tile's keys. Keys that do not exist are masked later.
    void unpack_k(const char* k, int lane) { unpack(k, call_.block_tokens, call_.dim, k_, call_.dim, lane, 0); }

    // Stored [P / pair][dim][pair]; becomes panels over dim. Values that do not exist count as 0.
    void unpack_v(const char* v, int token, int exist) {
        const int all = call_.block_tokens;
        unpack(v, call_.dim, all, v_, tokens_, 0, token);
        for (int t = std::max(exist, 0); t < all; ++t) {
            for (int d = 0; d < dim_; d += W) {
                float* const at = place(v_, tokens_, d, token + t);
                const bool ends_pair = t % STEPS > 0;  // whose first value exists, or is 0 by now
                store(at, ends_pair ? (Vec)(load_bits(at) & 0xffff) : Vec{});
            }
        }
    }

    // [num_steps / pair][num_lanes][pair] to panels of `steps` steps, from (first_lane, first_step) on.
    void unpack(const char* from, int num_lanes, int num_steps, float* to, int steps, int first_lane, int first_step) {
        if constexpr (is_dot<S>) {
            for (int s = 0; s < num_steps; s += S::steps) {
                for (int lane = 0; lane < num_lanes; lane += W, from += W * 4) {
                    std::memcpy(place(to, steps, first_lane + lane, first_step + s), from, W * 4);
                }
            }
            return;
        }
        if (call_.pair == S::steps && num_lanes % W == 0 && first_lane % W == 0) {
            for (int s = 0; s < num_steps; s += S::steps) {
                for (int lane = 0; lane < num_lanes; lane += W, from += W * 4) {
                    float* const at = place(to, steps, first_lane + lane, first_step + s);
                    for (int i = 0; i < S::steps; ++i) store(at + i * PANEL, S::read(from, i));
                }
            }
            return;
        }
        const auto* stored = reinterpret_cast<const typename S::Stored*>(from);
        for (int s = 0; s < num_steps; s += call_.pair) {
            for (int lane = 0; lane < num_lanes; ++lane) {
                for (int i = 0; i < call_.pair; ++i) {
                    *place(to, steps, first_lane + lane, first_step + s + i) = S::one(*stored++);
                }
            }
        }
    }

    typedef std::conditional_t<is_dot<S>, S, F32> Product;

    const AttendCall& call_;
    const AttendItem& item_;
    int64_t low_, high_;  // positions of the queries
    int group_, rows_, dim_, blocks_, tokens_, lanes_;
    float *q_, *sums_, *scores_, *k_, *v_;
    RowState* states_;
};

}  // namespace
