// Micro-attention: how a call is cut into pieces for the threads, and which template computes a piece.

#pragma once

#include <new>
#include <type_traits>
#include <vector>

#include "abi.h"
#include "attend_many.h"
#include "attend_one.h"
#include "merge.h"
#include "threads.h"

namespace {

constexpr int64_t LEAST_KEYS = 512;  // of a piece: what its partial costs to merge is then small

// Partials of a sequence whose keys were cut: `count` of them, each over all its rows.
struct Cut {
    const AttendSeq* seq;
    int count;
    size_t outs, lses;  // where they begin in the plan's memory
};

template <class S>
class Plan {
    using One = OneRow<WithDot<S>>;
    using Many = ManyRows<WithDot<S>>;

  public:
    explicit Plan(const AttendCall& call) : call_(call) {
        int64_t keys = 0, pieces = 0;
        for (int64_t s = 0; s < call.num_seqs; ++s) {
            keys += call.seqs[s].num_blocks * call.block_tokens;
            pieces += call.seqs[s].num_rows > 0 ? pieces_of_rows(call.seqs[s]) : 0;
        }
        const int64_t wanted = int64_t(distkv_num_threads()) * 6;
        for (int64_t s = 0; s < call.num_seqs; ++s) add(call.seqs[s], keys, pieces, wanted);
        bind_partials();
    }

    void run() {
        parallel(static_cast<int>(items_.size()), call_.serving != 0, [this](int index) {
            const AttendItem& item = items_[items_.size() - 1 - index];  // late rows see more keys: they come first
            if (one_row(*item.seq)) {
                One(call_, item).run();
            } else if (Many::fits(call_)) {
                Many(call_, item).run();
            } else {
                ManyRows<S>(call_, item).run();
            }
        });
        for (const Cut& cut : cuts_) merge(cut);
    }

  private:
    bool one_row(const AttendSeq& seq) const { return seq.num_rows == 1 && One::fits(call_); }

    int rows_at_once() const { return std::max(1, Many::MOST_ROWS / call_.group()); }

    int64_t pieces_of_rows(const AttendSeq& seq) const {
        if (one_row(seq)) return 1;
        return (seq.num_rows + rows_at_once() - 1) / rows_at_once() * call_.kv_heads;
    }

    // pieces: of all sequences, if no keys are cut. wanted: how many keep all threads busy to the end.
    void add(const AttendSeq& seq, int64_t all_keys, int64_t pieces, int64_t wanted) {
        if (seq.num_rows == 0) return;
        const int64_t keys = seq.num_blocks * call_.block_tokens;
        const int64_t share = all_keys > 0 ? (wanted * keys + all_keys - 1) / all_keys : 1;
        int64_t cuts = one_row(seq) ? share : (wanted + pieces - 1) / pieces;
        if (pieces >= wanted && !one_row(seq)) cuts = 1;
        cuts = std::clamp<int64_t>(cuts, 1, std::max<int64_t>(1, keys / LEAST_KEYS));
        // A short sequence alone: heads instead of keys.
        int heads = 1;
        if (one_row(seq)) {
            const int64_t head_pieces = std::max<int64_t>(1, wanted / 2 / std::max<int64_t>(1, cuts * call_.num_seqs));
            heads = static_cast<int>((call_.kv_heads + head_pieces - 1) / head_pieces);
        }
        const int step = one_row(seq) ? 1 : rows_at_once();
        const int64_t shift = (seq.out_row - seq.first_row) * call_.heads;
        float* const out = call_.out + shift * call_.dim;
        float* const lse = call_.lse + shift;
        if (cuts > 1) {
            cuts_.push_back({&seq, static_cast<int>(cuts), num_floats_, 0});
            num_floats_ += size_t(cuts) * seq.num_rows * call_.heads * call_.dim;
            cuts_.back().lses = num_floats_;
            num_floats_ += size_t(cuts) * seq.num_rows * call_.heads;
        }
        for (int64_t row = 0; row < seq.num_rows; row += step) {
            const int rows = static_cast<int>(std::min<int64_t>(step, seq.num_rows - row));
            const int64_t* const positions = call_.q_positions + seq.first_row + row;
            const auto bounds = std::minmax_element(positions, positions + rows);
            const BlockRange all = blocks_seen(call_, seq, *bounds.first, *bounds.second);
            for (int64_t cut = 0; cut < cuts; ++cut) {
                const BlockRange blocks{all.first + (all.end - all.first) * cut / cuts,
                                        all.first + (all.end - all.first) * (cut + 1) / cuts};
                for (int head = 0; head < call_.kv_heads; head += heads) {
                    const int some = std::min(heads, call_.kv_heads - head);
                    items_.push_back({&seq, seq.first_row + row, rows, head, some, blocks, out, lse});
                    if (cuts > 1) places_.push_back({items_.size() - 1, cuts_.size() - 1, cut});
                }
            }
        }
    }

    // Rows of an item count from the call's first one, those of a partial from its sequence's.
    void bind_partials() {
        memory_.resize(num_floats_);
        for (const Place& place : places_) {
            const Cut& cut = cuts_[place.cut];
            const size_t rows = cut.seq->num_rows * call_.heads, first = cut.seq->first_row * call_.heads;
            items_[place.item].out = memory_.data() + cut.outs + place.part * rows * call_.dim - first * call_.dim;
            items_[place.item].lse = memory_.data() + cut.lses + place.part * rows - first;
        }
    }

    void merge(const Cut& cut) {
        const int64_t rows = cut.seq->num_rows * call_.heads, first = cut.seq->out_row * call_.heads;
        std::vector<const float*> outs, lses;
        for (int i = 0; i < cut.count; ++i) {
            outs.push_back(memory_.data() + cut.outs + i * rows * call_.dim);
            lses.push_back(memory_.data() + cut.lses + i * rows);
        }
        merge_rows(outs.data(), lses.data(), cut.count, rows, call_.dim, call_.out + first * call_.dim,
                   call_.lse + first, call_.serving != 0);
    }

    struct Place {
        size_t item, cut;
        int64_t part;
    };

    const AttendCall& call_;
    std::vector<AttendItem> items_;
    std::vector<Place> places_;
    std::vector<Cut> cuts_;
    std::vector<float> memory_;
    size_t num_floats_ = 0;
};

}  // namespace

// Returns 0, or 1 when there was no memory.
DISTKV_API(int, attend)(const AttendCall* call) {
    try {
        of_dtype(call->kv_type, [&](auto stored) {
            Plan<decltype(stored)>(*call).run();
        });
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
