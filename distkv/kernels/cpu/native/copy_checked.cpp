// Scattered copies that compute the checksum of every block on the way: the bytes are looked at while they are in
// registers, so that checking costs arithmetic only and no second pass over memory. The sums fill the processor's window
// of instructions, in which a copy alone finds its next lines by itself; so lines are fetched early, a page ahead and on
// into the block that is copied next.

#include "abi.h"
#include "xxh3.h"

// Copies blocks slots[i] of `block_bytes` each, counted from `base`, to the addresses places[i], for `count` blocks; the
// checksum of each goes to `checksums`. Returns 0, with nothing copied, where this machine or the size of a block does not
// allow it.
DISTKV_EXPORT int distkv_copy_blocks_checked(const char* base, const int64_t* slots, const int64_t* places,
                                             uint64_t* checksums, int64_t count, int64_t block_bytes) {
    if (!can_checksum(block_bytes)) return 0;
    for (int64_t i = 0; i < count; ++i) {
        char* to = reinterpret_cast<char*>(places[i]);
        const char* from = base + slots[i] * block_bytes;
        const bool aligned = (reinterpret_cast<uintptr_t>(to) & 31) == 0;
        const char* next = i + 1 < count ? base + slots[i + 1] * block_bytes : from;
        checksums[i] = aligned ? checksum_of<Write::PAST>(to, from, block_bytes, next)
                               : checksum_of<Write::CACHED>(to, from, block_bytes, next);
    }
#if defined(__x86_64__)
    _mm_sfence();
#endif
    return 1;
}
