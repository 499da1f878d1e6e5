// Scattered copies between memories that are both mapped here, in one call.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "abi.h"
#include "widths.h"

namespace {

// Of a whole call: what is larger leaves the caches before anybody reads it, and does not push out what is in them.
constexpr int64_t kStreamBytes = 1 << 20;
constexpr int64_t kAhead = 1024;
// Of a run: with shorter parts, which lie next to each other, memory is slower.
constexpr int64_t kLongestPart = 1 << 16;

#if defined(__x86_64__)

// Past the caches, what is no lane; `to` is aligned by 64 bytes first.
__attribute__((target("avx2"))) void stream_copy(char* to, const char* from, int64_t size) {
    const int64_t head = (64 - (reinterpret_cast<uintptr_t>(to) & 63)) & 63;
    if (size < head + 256) {
        std::memcpy(to, from, size);
        return;
    }
    std::memcpy(to, from, head);
    int64_t at = head;
    for (; at + 256 <= size; at += 256) {
        for (int line = 0; line < 256; line += 64) {
            const char* source = from + at + line;
            _mm_prefetch(source + kAhead, _MM_HINT_T0);
            const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
            const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + 32));
            _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + line), low);
            _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + line + 32), high);
        }
    }
    std::memcpy(to + at, from + at, size - at);
}

void stream_lanes(char* const* to, const char* const* from, const char* const* next, int64_t size) {
    static const WorkOnLanes work = work_on_lanes<Write::PAST, false>();
    work(to, from, next, size, nullptr);
}

bool can_stream() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2");
}

#else

void stream_copy(char* to, const char* from, int64_t size) { std::memcpy(to, from, size); }

void stream_lanes(char* const*, const char* const*, const char* const*, int64_t) {}

bool can_stream() { return false; }

#endif

// The runs of a call. They are copied a few at once (lanes.h), long ones in parts.
class Copies {
public:
    explicit Copies(int64_t total_bytes) : streams_(total_bytes >= kStreamBytes && can_stream()) {}

    void add(char* to, const char* from, int64_t size) {
        if (!streams_) {
            std::memcpy(to, from, size);
            return;
        }
        const int64_t part = part_of(size);
        for (; part && size >= part; to += part, from += part, size -= part) add_part(to, from, part);
        if (size) add_part(to, from, size);
    }

    void end() {
        end_lanes();
#if defined(__x86_64__)
        if (streams_) _mm_sfence();
#endif
    }

private:
    // Parts that are alike, so that four of them are copied at once, where there are such.
    static int64_t part_of(int64_t size) {
        const int64_t lane_bytes = size / kLaneBytes;
        int64_t parts = std::max<int64_t>(1, (size + kLongestPart - 1) / kLongestPart);
        const int64_t least = parts;
        while (lane_bytes % parts && parts < 4 * least) ++parts;
        if (lane_bytes % parts) parts = least;
        return (lane_bytes + parts - 1) / parts * kLaneBytes;
    }

    void add_part(char* to, const char* from, int64_t size) {
        if (!is_lane(to, size) || (held_ && size != size_)) end_lanes();
        if (!is_lane(to, size)) {
            stream_copy(to, from, size);
            return;
        }
        if (held_ == 2 * kLanes) {
            stream_lanes(to_, from_, from_ + kLanes, size_);
            held_ = kLanes;
            std::copy_n(to_ + kLanes, kLanes, to_);
            std::copy_n(from_ + kLanes, kLanes, from_);
        }
        size_ = size;
        to_[held_] = to;
        from_[held_++] = from;
    }

    static bool is_lane(char* to, int64_t size) {
        return size % kLaneBytes == 0 && (reinterpret_cast<uintptr_t>(to) & 63) == 0;
    }

    void end_lanes() {
        int done = 0;
        for (; done + kLanes <= held_; done += kLanes) stream_lanes(to_ + done, from_ + done, from_ + done, size_);
        for (; done < held_; ++done) stream_copy(to_[done], from_[done], size_);
        held_ = 0;
    }

    const bool streams_;
    int held_ = 0;
    int64_t size_ = 0;
    char* to_[2 * kLanes];
    const char* from_[2 * kLanes];
};

}  // namespace

// Copies sizes[i] bytes from base + offsets[i] to the address places[i], for `count` runs. Places do not overlap sources.
DISTKV_EXPORT void distkv_copy_runs(const char* base, const int64_t* offsets, const int64_t* places, const int64_t* sizes,
                                    int64_t count) {
    int64_t total = 0;
    for (int64_t run = 0; run < count; ++run) total += sizes[run];
    Copies copies(total);
    for (int64_t run = 0; run < count; ++run) {
        copies.add(reinterpret_cast<char*>(places[run]), base + offsets[run], sizes[run]);
    }
    copies.end();
}

// Copies blocks slots[i] of `block_bytes` each, counted from `base`, to the addresses places[i], for `count` blocks;
// neighbours at both ends in one run.
DISTKV_EXPORT void distkv_copy_blocks(const char* base, const int64_t* slots, const int64_t* places, int64_t count,
                                      int64_t block_bytes) {
    Copies copies(count * block_bytes);
    for (int64_t first = 0, end; first < count; first = end) {
        end = first + 1;
        while (end < count && slots[end] - slots[end - 1] == 1 && places[end] - places[end - 1] == block_bytes) ++end;
        copies.add(reinterpret_cast<char*>(places[first]), base + slots[first] * block_bytes,
                   (end - first) * block_bytes);
    }
    copies.end();
}
