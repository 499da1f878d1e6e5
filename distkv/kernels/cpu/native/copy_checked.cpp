// Copies that compute the checksum of every block on the way: blocks a few at once (lanes.h); the last ones, and those of
// which that cannot be done, one after the other, what follows fetched a page ahead.

#include "abi.h"
#include "widths.h"

#if defined(__x86_64__)

namespace {

// Whether the next kLanes of `count` blocks can be worked on at once. places: null if they go nowhere.
bool are_lanes(const int64_t* places, int64_t count) {
    if (count < kLanes) return false;
    bool is_aligned = true;
    for (int lane = 0; lane < kLanes; ++lane) is_aligned &= !places || (places[lane] & 63) == 0;
    return is_aligned;
}

template <Write write>
void checksums_of_blocks(const char* base, const int64_t* slots, const int64_t* places, uint64_t* checksums,
                         int64_t count, int64_t block_bytes) {
    const WorkOnLanes work = block_bytes % kLaneBytes == 0 ? work_on_lanes<write, true>() : nullptr;
    const auto block = [&](int64_t i) { return base + slots[i < count ? i : count - 1] * block_bytes; };
    const auto place = [&](int64_t i) { return write == Write::NOWHERE ? nullptr : reinterpret_cast<char*>(places[i]); };
    for (int64_t i = 0; i < count;) {
        if (work && are_lanes(places ? places + i : nullptr, count - i)) {
            char* to[kLanes];
            const char *from[kLanes], *next[kLanes];
            for (int lane = 0; lane < kLanes; ++lane) {
                to[lane] = place(i + lane);
                from[lane] = block(i + lane);
                next[lane] = block(i + kLanes + lane);
            }
            work(to, from, next, block_bytes, checksums + i);
            i += kLanes;
            continue;
        }
        const bool is_aligned = write == Write::PAST && (places[i] & 31) == 0;
        checksums[i] = write == Write::NOWHERE || is_aligned
                           ? checksum_of<write>(place(i), block(i), block_bytes, block(i + 1))
                           : checksum_of<Write::CACHED>(place(i), block(i), block_bytes, block(i + 1));
        ++i;
    }
}

}  // namespace

#endif

// Copies blocks slots[i] of `block_bytes` each, counted from `base`, to the addresses places[i], for `count` blocks; the
// checksum of each goes to `checksums`. Returns 0, with nothing copied, where this machine or the size of a block does not
// allow it.
DISTKV_EXPORT int distkv_copy_blocks_checked(const char* base, const int64_t* slots, const int64_t* places,
                                             uint64_t* checksums, int64_t count, int64_t block_bytes) {
    if (!can_checksum(block_bytes)) return 0;
#if defined(__x86_64__)
    checksums_of_blocks<Write::PAST>(base, slots, places, checksums, count, block_bytes);
    _mm_sfence();
#endif
    return 1;
}

// The checksums of blocks slots[i], likewise, which lie still.
DISTKV_EXPORT int distkv_checksum_blocks(const char* base, const int64_t* slots, uint64_t* checksums, int64_t count,
                                         int64_t block_bytes) {
    if (!can_checksum(block_bytes)) return 0;
#if defined(__x86_64__)
    checksums_of_blocks<Write::NOWHERE>(base, slots, nullptr, checksums, count, block_bytes);
#endif
    return 1;
}
