// DistAttention of one layer, and a creditor's part in it, each without Python between its steps. Compiled once, for any
// machine: what computes is a function of a dispatch level, given by its address.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "abi.h"
#include "frames.h"
#include "halves.h"
#include "threads.h"

namespace {

typedef int (*Attend)(const void* call);
typedef void (*Merge)(const float* const* outs, const float* const* lses, int count, int64_t rows, int dim, float* out,
                      float* lse);

// How a frame begins.
struct Beginning {
    const char* bytes;
    int64_t size;
};

// Of one layer: when its queries were sent, and when its partials were waited for. Seconds on the monotonic clock.
struct PeerTimes {
    double asked_s, sent_s, waits_s, answered_s;
};

// What one creditor is sent, and what comes back. frames, expected: how the frames of queries and those of partials
// begin, by layer; what has come of the latter goes to `head`. rows: those of the queries that it is sent, by way of
// `picked`; null where they follow each other from first_row on. status, received: see FrameStatus. times: by layer.
// wide: where the `num_halves` numbers of bfloat16 that partials begin with go as float32, null where they are that.
struct Peer {
    int32_t fd;
    int32_t status;
    const Beginning *frames, *expected;
    PeerTimes* times;
    const int64_t* rows;
    char *picked, *head, *partials;
    float* wide;
    int64_t first_row, num_rows, partial_bytes, received, num_halves;
    double patience_s;
    Rhythm waits;
};

// Rows × heads that follow each other, of `count` partials, those at `first` and behind it in `outs` and `lses`.
struct MergeRun {
    int64_t first, count, rows;
    float *out, *lse;
};

// When all queries were sent, own keys attended to, all partials there, and all merged.
struct LayerTimes {
    double sent_s, attended_s, collected_s, merged_s;
};

// times: by layer. turn_s: what a creditor gets at least to hand over what it may have answered while another one was
// waited for.
struct ExchangeCall {
    Attend attend;
    Merge merge;
    const MergeRun* runs;
    const float* const* outs;
    const float* const* lses;
    Peer* peers;
    LayerTimes* times;
    int64_t num_runs, num_peers, row_bytes;
    int32_t dim;
    double turn_s;
};

const char* queries_of(const Peer& peer, const char* q, int64_t row_bytes) {
    if (!peer.rows) return q + peer.first_row * row_bytes;
    for (int64_t i = 0; i < peer.num_rows; ++i) {
        std::memcpy(peer.picked + i * row_bytes, q + peer.rows[i] * row_bytes, row_bytes);
    }
    return peer.picked;
}

FrameStatus ask(const Peer& peer, int64_t layer, const char* q, int64_t row_bytes) {
    PeerTimes& times = peer.times[layer];
    times.asked_s = monotonic_s();
    const char* const queries = queries_of(peer, q, row_bytes);
    iovec parts[2] = {{const_cast<char*>(peer.frames[layer].bytes), static_cast<size_t>(peer.frames[layer].size)},
                      {const_cast<char*>(queries), static_cast<size_t>(peer.num_rows * row_bytes)}};
    const FrameStatus status = send_all(peer.fd, parts, 2, peer.patience_s);
    times.sent_s = monotonic_s();
    return status;
}

// since_s: when waiting for all of them began.
FrameStatus collect(Peer& peer, int64_t layer, double since_s, double turn_s) {
    PeerTimes& times = peer.times[layer];
    times.waits_s = monotonic_s();
    const double patience_s = std::min(peer.patience_s, std::max(turn_s, since_s + peer.patience_s - times.waits_s));
    const Beginning& expected = peer.expected[layer];
    const Looks looks = layer > 0 ? peer.waits.looks(times.waits_s) : Looks{};  // the first one waits for the plan, too
    const FrameStatus status = receive_frame(peer.fd, expected.bytes, expected.size, peer.head, peer.partials,
                                             peer.partial_bytes, times.waits_s + patience_s, looks, peer.received);
    if (status == FRAME_OK && layer > 0) peer.waits.took(monotonic_s() - times.waits_s, looks);
    if (status == FRAME_OK && peer.wide) widen(peer.partials, peer.wide, peer.num_halves);
    times.answered_s = monotonic_s();
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
    Rhythm pauses;
    int32_t fd;
};

// A creditor looks for queries only where it has computed nothing of its own for so long: it has the core to itself.
constexpr double RESTS_S = 0.1;

// Beside FrameStatus: what is wanted may be gone, and queries for it are there if any bytes were received; the peer takes
// no partials; attention found no memory.
constexpr int32_t SERVE_SHUT = 5, SERVE_STUCK = 6, SERVE_NO_MEMORY = 7;

}  // namespace

// One layer: send queries, attend to own keys, collect partials, merge. q: of all rows. Returns 0; 1 when attention found
// no memory; 2 when a peer failed, each of which has its status. Only after 0 anything is merged.
DISTKV_EXPORT int distkv_exchange(ExchangeCall* call, int64_t layer, const void* q, const void* attend_call) {
    LayerTimes& times = call->times[layer];
    for (int64_t i = 0; i < call->num_peers; ++i) {
        Peer& peer = call->peers[i];
        peer.status = ask(peer, layer, static_cast<const char*>(q), call->row_bytes);
    }
    times.sent_s = monotonic_s();
    const int out_of_memory = call->attend(attend_call);
    times.attended_s = monotonic_s();
    bool has_failed = false;
    for (int64_t i = 0; i < call->num_peers; ++i) {
        Peer& peer = call->peers[i];
        peer.received = 0;
        if (peer.status == FRAME_OK) peer.status = collect(peer, layer, times.attended_s, call->turn_s);
        has_failed |= peer.status != FRAME_OK;
    }
    times.collected_s = times.merged_s = monotonic_s();
    if (out_of_memory) return 1;
    if (has_failed) return 2;
    for (int64_t i = 0; i < call->num_runs; ++i) {
        const MergeRun& run = call->runs[i];
        call->merge(call->outs + run.first, call->lses + run.first, static_cast<int>(run.count), run.rows, call->dim,
                    run.out, run.lse);
    }
    times.merged_s = monotonic_s();
    return 0;
}

// Serve the layers of a plan as their queries come, until one of them is not the next, or does not come, or the gate is
// shut. Returns a FrameStatus, 0 after the last layer, or one of the above; `next` is the layer that it is about.
DISTKV_EXPORT int distkv_serve(ServeCall* call) {
    double answered_s = 0;
    for (; call->next < call->num_layers; ++call->next) {
        ServeLayer& layer = call->layers[call->next];
        const double now_s = monotonic_s();
        const bool rests = answered_s > 0 && now_s - distkv_own_work_s() > RESTS_S;
        const Looks looks = rests ? call->pauses.looks(answered_s) : Looks{};
        const FrameStatus got =
            receive_frame(call->fd, layer.expected, layer.expected_bytes, call->head, call->queries, call->query_bytes,
                          now_s + call->idle_s, looks, call->received);
        if (got != FRAME_OK) return got;
        if (call->gate->fetch_or(READING) & SHUT) {
            call->gate->fetch_and(~READING);
            return SERVE_SHUT;
        }
        layer.received_s = monotonic_s();
        if (answered_s > 0) call->pauses.took(layer.received_s - answered_s, looks);
        call->time->begin();
        const int out_of_memory = call->attend(layer.attend_call);
        if (call->wide && !out_of_memory) narrow(call->wide, call->partials, call->num_halves);
        call->time->end();
        layer.attended_s = monotonic_s();
        // Whoever shut it meanwhile waits until this call returns, and not for a peer that takes no partials.
        const bool is_shut = (call->gate->fetch_and(~READING) & SHUT) != 0;
        if (out_of_memory) return SERVE_NO_MEMORY;
        if (is_shut) return SERVE_SHUT;
        iovec parts[2] = {{const_cast<char*>(layer.answer), static_cast<size_t>(layer.answer_bytes)},
                          {call->partials, static_cast<size_t>(call->partial_bytes)}};
        call->received = 0;
        const FrameStatus sent = send_all(call->fd, parts, 2, call->send_s);
        if (sent != FRAME_OK) return sent == FRAME_LATE ? SERVE_STUCK : sent;
        answered_s = monotonic_s();
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
