// What a call of micro-attention says, and what of a block a query sees.

#pragma once

#include <algorithm>
#include <cstdint>

#include "dtypes.h"
#include "simd.h"

namespace {

// One sequence: rows [first_row, first_row + num_rows) of the queries over blocks ascending by position; its partials
// begin at row out_row.
struct AttendSeq {
    const int64_t* slots;
    const int64_t* positions;
    int64_t num_blocks;
    int64_t num_keys;
    int64_t first_row;
    int64_t num_rows;
    int64_t out_row;
};

// q [N, heads, dim], rows q_stride numbers apart. k, v: of one layer in slot 0, slot_bytes apart; `pair` steps to a
// 32-bit lane. out [R, heads, dim], lse [R, heads]. window: 0 for none. alibi: a slope per head, or null. scale: above 0.
struct AttendCall {
    const void* q;
    const int64_t* q_positions;
    const char* k;
    const char* v;
    const float* alibi;
    float* out;
    float* lse;
    const AttendSeq* seqs;
    int64_t q_stride;
    int64_t slot_bytes;
    int64_t window;
    int64_t num_seqs;
    int32_t q_type;
    int32_t kv_type;
    int32_t pair;
    int32_t heads;
    int32_t kv_heads;
    int32_t dim;
    int32_t block_tokens;
    int32_t serving;
    float scale;

    int group() const { return heads / kv_heads; }
    size_t head_bytes() const { return size_t(block_tokens) * dim * (kv_type == 0 ? 4 : 2); }
    const char* k_block(int64_t slot, int head) const { return k + slot * slot_bytes + head * head_bytes(); }
    const char* v_block(int64_t slot, int head) const { return v + slot * slot_bytes + head * head_bytes(); }

    // Row `row` of the queries at head `head` times `factor`, as floats.
    void read_q(int64_t row, int head, float factor, float* to) const {
        of_dtype(q_type, [&](auto stored) {
            using S = decltype(stored);
            const auto* from = static_cast<const typename S::Stored*>(q) + size_t(row) * q_stride + size_t(head) * dim;
            for (int d = 0; d < dim; ++d) to[d] = factor * S::one(from[d]);
        });
    }
};

// Keys [first, end) of a block that starts at `start`, as a query at `position` sees them; maybe none.
struct Seen {
    int first, end;
    bool all(int block_tokens) const { return first <= 0 && end >= block_tokens; }
};

DISTKV_INLINE Seen seen(const AttendCall& call, const AttendSeq& seq, int64_t start, int64_t position) {
    const int64_t tokens = call.block_tokens;
    const int64_t end = std::min(tokens, std::min(position + 1, seq.num_keys) - start);
    const int64_t first = call.window > 0 ? position - call.window + 1 - start : 0;
    return {static_cast<int>(std::clamp<int64_t>(first, 0, tokens)), static_cast<int>(std::max<int64_t>(end, 0))};
}

// The blocks [first, end) of a sequence in which queries at positions low to high see any key.
struct BlockRange {
    int64_t first, end;
};

inline BlockRange blocks_seen(const AttendCall& call, const AttendSeq& seq, int64_t low, int64_t high) {
    const int64_t* const begin = seq.positions;
    const int64_t* const stop = begin + seq.num_blocks;
    const int64_t oldest = call.window > 0 ? low - call.window + 1 : 0;
    const int64_t newest = std::min(high, seq.num_keys - 1);
    const int64_t first = std::upper_bound(begin, stop, oldest - call.block_tokens) - begin;
    const int64_t end = std::upper_bound(begin, stop, newest) - begin;
    return {first, std::max(first, end)};
}

// Queries of pairs are not scaled, for that would round them again: their scores are, with ALiBi or, without, as they become
// weights. This is what is left to scale them by then.
template <class S>
float late_scale(const AttendCall& call) {
    return is_dot<S> && call.alibi == nullptr ? call.scale : 1.0f;
}

// The scores of a block's keys, the first of them `ahead` of the query.
template <class S>
void add_alibi(const AttendCall& call, float* scores, float slope, int64_t ahead) {
    const float scale = is_dot<S> ? call.scale : 1.0f;
    for (int i = 0; i < call.block_tokens; ++i) scores[i] = scale * scores[i] + slope * static_cast<float>(ahead + i);
}

// One piece of work: queries [row, row + rows) and KV heads [head, head + heads) over some blocks of a sequence. out
// and lse are where row 0 of the queries would have its partial.
struct AttendItem {
    const AttendSeq* seq;
    int64_t row;
    int rows;
    int head, heads;
    BlockRange blocks;
    float* out;
    float* lse;
};

}  // namespace
