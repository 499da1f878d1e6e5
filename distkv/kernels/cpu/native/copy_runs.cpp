// Scattered copies between memories that are both mapped here, in one call.

#include <cstdint>
#include <cstring>

#include "abi.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// Of a whole call: what is larger leaves the caches before anybody reads it, and does not push out what is in them.
constexpr int64_t kStreamBytes = 1 << 20;
constexpr int64_t kAhead = 1024;

#if defined(__x86_64__)

// Past the caches; `to` is aligned by 64 bytes first.
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

bool can_stream() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2");
}

#else

void stream_copy(char* to, const char* from, int64_t size) { std::memcpy(to, from, size); }

bool can_stream() { return false; }

#endif

void copy_run(char* to, const char* from, int64_t size, bool stream) {
    if (stream) {
        stream_copy(to, from, size);
    } else {
        std::memcpy(to, from, size);
    }
}

void end_copies(bool stream) {
#if defined(__x86_64__)
    if (stream) _mm_sfence();
#else
    (void)stream;
#endif
}

}  // namespace

// Copies sizes[i] bytes from base + offsets[i] to the address places[i], for `count` runs. Places do not overlap sources.
DISTKV_EXPORT void distkv_copy_runs(const char* base, const int64_t* offsets, const int64_t* places, const int64_t* sizes,
                                    int64_t count) {
    int64_t total = 0;
    for (int64_t run = 0; run < count; ++run) total += sizes[run];
    const bool stream = total >= kStreamBytes && can_stream();
    for (int64_t run = 0; run < count; ++run) {
        copy_run(reinterpret_cast<char*>(places[run]), base + offsets[run], sizes[run], stream);
    }
    end_copies(stream);
}

// Copies blocks slots[i] of `block_bytes` each, counted from `base`, to the addresses places[i], for `count` blocks;
// neighbours at both ends in one run.
DISTKV_EXPORT void distkv_copy_blocks(const char* base, const int64_t* slots, const int64_t* places, int64_t count,
                                      int64_t block_bytes) {
    const bool stream = count * block_bytes >= kStreamBytes && can_stream();
    for (int64_t first = 0, end; first < count; first = end) {
        end = first + 1;
        while (end < count && slots[end] - slots[end - 1] == 1 && places[end] - places[end - 1] == block_bytes) ++end;
        copy_run(reinterpret_cast<char*>(places[first]), base + slots[first] * block_bytes, (end - first) * block_bytes,
                 stream);
    }
    end_copies(stream);
}
