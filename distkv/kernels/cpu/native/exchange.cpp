// DistAttention of one layer, and a creditor's part in it, each without Python between its steps. Compiled once, for any
// machine: what computes is a function of a dispatch level, given by its address.

#include <algorithm>
#include <atomic>
#include <mutex>

#include "abi.h"
#include "frames.h"
#include "halves.h"

namespace {

typedef int (*Attend)(const void* call);
typedef void (*Merge)(const float* const* outs, const float* const* lses, int count, int64_t rows, int dim, float* out,
                      float* lse);

// What one creditor is sent, and what comes back. frame: how the frame of its queries begins. expected: how that of its
// partials does, which goes to `head`. status, received: see FrameStatus. Times are seconds on the monotonic clock.
// wide: where the `num_halves` numbers of bfloat16 that partials begin with go as float32, null where they are that.
struct Peer {
    int32_t fd;
    int32_t status;
    const char *frame, *queries, *expected;
    char *head, *partials;
    float* wide;
    int64_t frame_bytes, query_bytes, expected_bytes, partial_bytes, received, num_halves;
    double patience_s, asked_s, sent_s, waits_s, answered_s;
};

// Rows × heads that follow each other, of `count` partials, those at `first` and behind it in `outs` and `lses`.
struct MergeRun {
    int64_t first, count, rows;
    float *out, *lse;
};

// turn_s: what a creditor gets at least to hand over what it may have answered while another one was waited for.
struct ExchangeCall {
    Attend attend;
    const void* attend_call;
    Merge merge;
    const MergeRun* runs;
    const float* const* outs;
    const float* const* lses;
    Peer* peers;
    int64_t num_runs, num_peers;
    int32_t dim;
    int32_t failed;  // of all peers, how many
    double turn_s, sent_s, attended_s, collected_s, merged_s;
};

FrameStatus ask(Peer& peer) {
    peer.asked_s = monotonic_s();
    iovec parts[2] = {{const_cast<char*>(peer.frame), static_cast<size_t>(peer.frame_bytes)},
                      {const_cast<char*>(peer.queries), static_cast<size_t>(peer.query_bytes)}};
    const FrameStatus status = send_all(peer.fd, parts, 2, peer.patience_s);
    peer.sent_s = monotonic_s();
    return status;
}

// An answer is looked for so long before it is slept for: a sleeping core takes tens of microseconds to wake. Not where
// the answer of the layer before took longer than twice that, as of a creditor that is busy.
constexpr double LOOKS_S = 50e-6;

// since_s: when waiting for all of them began.
FrameStatus collect(Peer& peer, double since_s, double turn_s) {
    const double before_s = peer.answered_s - peer.waits_s;
    peer.waits_s = monotonic_s();
    const double patience_s =
        std::min(peer.patience_s, std::max(turn_s, since_s + peer.patience_s - peer.waits_s));
    const FrameStatus status =
        receive_frame(peer.fd, peer.expected, peer.expected_bytes, peer.head, peer.partials, peer.partial_bytes,
                      peer.waits_s + patience_s, before_s < 2 * LOOKS_S ? peer.waits_s + LOOKS_S : 0, peer.received);
    if (status == FRAME_OK && peer.wide) widen(peer.partials, peer.wide, peer.num_halves);
    peer.answered_s = monotonic_s();
    return status;
}

// Who is being served, and for how long somebody was, whoever it was: it grows no faster than the clock.
struct ServeTime {
    std::mutex lock;
    int64_t serving = 0;
    double since_s = 0, total_s = 0;

    void begin() {
        const std::lock_guard<std::mutex> guard(lock);
        if (serving++ == 0) since_s = monotonic_s();
    }

    void end() {
        const std::lock_guard<std::mutex> guard(lock);
        if (--serving == 0) total_s += monotonic_s() - since_s;
    }

    double total() {
        const std::lock_guard<std::mutex> guard(lock);
        return total_s + (serving > 0 ? monotonic_s() - since_s : 0.0);
    }
};

// Says whether spans may be read, and whether somebody reads them right now.
constexpr int32_t READING = 1, SHUT = 2;

// One layer that is served: how the frame of its queries begins, how that of its partials does, and the attention.
struct ServeLayer {
    const char *expected, *answer;
    int64_t expected_bytes, answer_bytes;
    const void* attend_call;
    double received_s, attended_s;
};

// layers: in the order in which they come, from `next` on. queries: where they go. partials: where all attention is
// written, but for its out where that is to be bfloat16: then it is written to `wide`, `num_halves` numbers. received: of the next layer's frame, what is there, `head` first; or of another one.
struct ServeCall {
    Attend attend;
    ServeLayer* layers;
    std::atomic<int32_t>* gate;
    ServeTime* time;
    char *head, *queries, *partials;
    const float* wide;
    int64_t num_layers, next, query_bytes, partial_bytes, received, num_halves;
    double idle_s, send_s;
    int32_t fd;
};

// Beside FrameStatus: what is wanted may be gone, and queries for it are there if any bytes were received; the peer takes
// no partials; attention found no memory.
constexpr int32_t SERVE_SHUT = 5, SERVE_STUCK = 6, SERVE_NO_MEMORY = 7;

}  // namespace

// Send queries, attend to own keys, collect partials, merge. Returns 0, or 1 when attention found no memory; nothing is
// merged then, nor when a peer failed: each has its status.
DISTKV_EXPORT int distkv_exchange(ExchangeCall* call) {
    call->failed = 0;
    for (int64_t i = 0; i < call->num_peers; ++i) {
        Peer& peer = call->peers[i];
        peer.status = ask(peer);
    }
    call->sent_s = monotonic_s();
    const int out_of_memory = call->attend(call->attend_call);
    call->attended_s = monotonic_s();
    for (int64_t i = 0; i < call->num_peers; ++i) {
        Peer& peer = call->peers[i];
        peer.received = 0;
        if (peer.status == FRAME_OK) peer.status = collect(peer, call->attended_s, call->turn_s);
        call->failed += peer.status != FRAME_OK;
    }
    call->collected_s = call->merged_s = monotonic_s();
    if (out_of_memory || call->failed) return out_of_memory;
    for (int64_t i = 0; i < call->num_runs; ++i) {
        const MergeRun& run = call->runs[i];
        call->merge(call->outs + run.first, call->lses + run.first, static_cast<int>(run.count), run.rows, call->dim,
                    run.out, run.lse);
    }
    call->merged_s = monotonic_s();
    return 0;
}

// Serve the layers of a plan as their queries come, until one of them is not the next, or does not come, or the gate is
// shut. Returns a FrameStatus, 0 after the last layer, or one of the above; `next` is the layer that it is about.
DISTKV_EXPORT int distkv_serve(ServeCall* call) {
    for (; call->next < call->num_layers; ++call->next) {
        ServeLayer& layer = call->layers[call->next];
        const FrameStatus got =
            receive_frame(call->fd, layer.expected, layer.expected_bytes, call->head, call->queries, call->query_bytes,
                          monotonic_s() + call->idle_s, 0, call->received);
        if (got != FRAME_OK) return got;
        if (call->gate->fetch_or(READING) & SHUT) {
            call->gate->fetch_and(~READING);
            return SERVE_SHUT;
        }
        layer.received_s = monotonic_s();
        call->time->begin();
        const int out_of_memory = call->attend(layer.attend_call);
        if (call->wide && !out_of_memory) narrow(call->wide, call->partials, call->num_halves);
        call->time->end();
        layer.attended_s = monotonic_s();
        // Whoever shut it meanwhile waits until this call returns.
        const bool is_shut = (call->gate->fetch_and(~READING) & SHUT) != 0;
        if (out_of_memory) return SERVE_NO_MEMORY;
        iovec parts[2] = {{const_cast<char*>(layer.answer), static_cast<size_t>(layer.answer_bytes)},
                          {call->partials, static_cast<size_t>(call->partial_bytes)}};
        call->received = 0;
        const FrameStatus sent = send_all(call->fd, parts, 2, call->send_s);
        if (sent != FRAME_OK) return sent == FRAME_LATE ? SERVE_STUCK : sent;
        if (is_shut) {
            ++call->next;
            return SERVE_SHUT;
        }
    }
    return FRAME_OK;
}

// Whether somebody reads by this gate right now; nobody begins to from now on.
DISTKV_EXPORT int distkv_gate_shut(std::atomic<int32_t>* gate) { return gate->fetch_or(SHUT) & READING; }

DISTKV_EXPORT ServeTime* distkv_serve_time_new() { return new ServeTime; }
DISTKV_EXPORT void distkv_serve_time_free(ServeTime* time) { delete time; }
DISTKV_EXPORT void distkv_serve_time_begin(ServeTime* time) { time->begin(); }
DISTKV_EXPORT void distkv_serve_time_end(ServeTime* time) { time->end(); }
DISTKV_EXPORT double distkv_serve_time_total(ServeTime* time) { return time->total(); }
