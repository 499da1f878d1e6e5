// All layers of a decoder in one call, without Python code from layer to layer, also where keys lie elsewhere.

#pragma once

#include <cstdint>
#include <cstring>
#include <new>

#include "abi.h"
#include "attention.h"
#include "layer_tail.h"
#include "dtypes.h"
#include "scratch.h"
#include "store.h"

namespace {

// What is the same in every call: see LayerTailCall, StoreCall and AttendCall.
struct LayerParts {
    LinearPart o, gate_up, down, next;
    const void *mlp_norm, *next_norm, *q_norm, *k_norm;
    char *k, *v;
    int64_t window;
};

// Attention of a layer to all keys: see exchange.cpp, which is compiled once for all levels.
typedef int (*Exchange)(void* call, int64_t layer, const void* q, const void* attend_call);

// x: [num_rows, hidden]. found: [num_rows, (heads + 2 · kv_heads) · dim], the first layer's projections. Both are
// overwritten. wanted: rows, num_wanted of them, whose hidden states go to out [num_wanted, hidden] after the last norm.
// seqs: of all rows, in order. exchange: null where all keys lie here; else what attends, by exchange_call, for which own
// keys are attended to into local and local_lse, and the result is `merged`; stopped_at: the layer in which it failed.
// The rest as in StoreCall and AttendCall.
struct LayersCall {
    const LayerParts* layers;
    void *x, *found, *out;
    const void *cos, *sin;
    const int64_t *positions, *slots, *offsets, *wanted;
    const AttendSeq* seqs;
    Exchange exchange;
    void* exchange_call;
    float *local, *local_lse;
    const float* merged;
    int64_t num_layers, num_rows, num_wanted, num_seqs, slot_bytes, stopped_at;
    int32_t type, pair, heads, kv_heads, dim, block_tokens;
    float scale, eps;
};

thread_local Scratch attended_rows;  // of who calls

template <class S>
class Layers {
    typedef typename S::Stored Stored;

  public:
    explicit Layers(LayersCall& call) : call_(call) {}

    // False where an exchange failed: x is then what came before the tail of that layer.
    bool run() {
        const int64_t numbers = call_.num_rows * width(), wanted = call_.num_wanted * (width() + hidden());
        attended_rows.begin(2 * numbers + call_.num_rows * call_.heads + wanted);
        q_ = attended_rows.floats(numbers);
        attended_ = attended_rows.floats(numbers);
        lse_ = attended_rows.floats(call_.num_rows * call_.heads);
        for (int64_t layer = 0; layer < call_.num_layers; ++layer) {
            const LayerParts& parts = call_.layers[layer];
            store(parts);
            if (!attend(parts, layer)) {
                call_.stopped_at = layer;
                return false;
            }
            const float* const attended = call_.exchange ? call_.merged : attended_;
            if (layer + 1 < call_.num_layers) {
                tail(parts, attended, call_.x, call_.found, call_.num_rows);
            } else {
                float* const picked = attended_rows.floats(call_.num_wanted * width());
                void* const x = attended_rows.floats(call_.num_wanted * hidden());
                pick(attended, width() * sizeof(float), picked);
                pick(call_.x, hidden() * sizeof(Stored), x);
                tail(parts, picked, x, call_.out, call_.num_wanted);
            }
        }
        return true;
    }

  private:
    int64_t width() const { return int64_t(call_.heads) * call_.dim; }
    int64_t hidden() const { return call_.layers[0].o.n; }

    void store(const LayerParts& parts) const {
        const int64_t stride = width() + int64_t(2) * call_.kv_heads * call_.dim;
        store_rows<S>({call_.found, call_.cos, call_.sin, parts.q_norm, parts.k_norm, q_, parts.k, parts.v, call_.slots,
                       call_.offsets, call_.num_rows, stride, call_.slot_bytes, call_.type, call_.pair, call_.heads,
                       call_.kv_heads, call_.dim, call_.block_tokens, call_.eps});
    }

    bool attend(const LayerParts& parts, int64_t layer) const {
        const bool is_local = call_.exchange == nullptr;
        const AttendCall attend{q_, call_.positions, parts.k, parts.v, nullptr, is_local ? attended_ : call_.local,
                                is_local ? lse_ : call_.local_lse, call_.seqs, width(), call_.slot_bytes, parts.window,
                                call_.num_seqs, call_.type, call_.type, call_.pair, call_.heads, call_.kv_heads,
                                call_.dim, call_.block_tokens, 0, call_.scale};
        if (is_local) {
            Plan<S>(attend).run();
            return true;
        }
        const int found = call_.exchange(call_.exchange_call, layer, q_, &attend);
        if (found == 1) throw std::bad_alloc();
        return found == 0;
    }

    void tail(const LayerParts& parts, const float* attended, void* x, void* out, int64_t rows) const {
        const LayerTailCall call{attended, x, out, parts.mlp_norm, parts.next_norm, parts.o, parts.gate_up, parts.down,
                                  parts.next, rows, call_.type, call_.eps};
        LayerTail<S>{call}.run();
    }

    // The wanted rows, `bytes` each.
    void pick(const void* from, int64_t bytes, void* to) const {
        for (int64_t i = 0; i < call_.num_wanted; ++i) {
            std::memcpy(static_cast<char*>(to) + i * bytes, static_cast<const char*>(from) + call_.wanted[i] * bytes, bytes);
        }
    }

    LayersCall& call_;
    void* q_ = nullptr;
    float *attended_ = nullptr, *lse_ = nullptr;
};

}  // namespace

// Returns 0, 1 when there was no memory, or 2 when an exchange failed.
DISTKV_API(int, layers)(LayersCall* call) {
    try {
        bool is_done = false;
        of_dtype(call->type, [&](auto storage) { is_done = Layers<decltype(storage)>(*call).run(); });
        return is_done ? 0 : 2;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
