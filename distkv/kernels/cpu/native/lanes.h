// Included once for each width of vectors, within a namespace that has Sums, first_sums, take, scramble, store, kEarly and
// Turns, with DISTKV_LANES_TARGET: blocks that lie scattered, several at once. They are copied, their checksums are
// computed, or both: bytes are looked at while they are in registers, so that checking is arithmetic only and no second
// pass over memory.
//
// Some lines of each are worked on in turn, and what follows is fetched early, on into the blocks that come next: no
// processor fetches ahead by itself from one page into another, and sums fill the window of instructions in which a copy
// alone would find its next lines. All lanes' sums stay in registers, for which the loop over lanes has to be unrolled.

// Of Turns<write>::kAtOnce blocks of `size` bytes, a multiple of kBlock; each `to` is aligned by 64 bytes. next: the blocks
// that follow in time. checksums: unused unless `has_sums`. near: 3 where what is fetched goes to all caches, 0 where past
// the farther ones.
template <Write write, bool has_sums, int near>
DISTKV_LANES_TARGET void work_at_once(char* const* to, const char* const* from, const char* const* next, int64_t size,
                                      uint64_t* checksums) {
    constexpr int lanes = Turns<write>::kAtOnce, turn = Turns<write>::kStripes;
    static_assert(kLanes % lanes == 0 && kStripesPerBlock % turn == 0);
    Sums sums[lanes];
    char* targets[lanes];
    const char *sources[lanes], *ahead[lanes];
#pragma GCC unroll 4
    for (int lane = 0; lane < lanes; ++lane) {
        sums[lane] = first_sums();
        targets[lane] = to[lane];
        sources[lane] = from[lane];
    }
    const int64_t last = size - kBlock, early = std::min(kEarly, size);
    for (int64_t at = 0; at <= last; at += kBlock) {
        const int64_t fetched = at + early;
#pragma GCC unroll 4
        for (int lane = 0; lane < lanes; ++lane) {
            ahead[lane] = fetched < size ? sources[lane] + fetched : next[lane] + (fetched - size);
        }
#pragma GCC unroll 1
        for (int64_t first = 0; first < kStripesPerBlock; first += turn) {
#pragma GCC unroll 4
            for (int lane = 0; lane < lanes; ++lane) {
#pragma GCC unroll 4
                for (int64_t i = first; i < first + turn; ++i) {
                    const bool ends = at == last && i == kStripesPerBlock - 1;
                    const unsigned char* secret = kSecret + (ends ? kLastStripeKey : 8 * i);
                    const int64_t where = at + i * kStripe;
                    __builtin_prefetch(ahead[lane] + i * kStripe, 0, near);
                    take<write, has_sums>(sums[lane], targets[lane] + where, sources[lane] + where, secret);
                }
            }
        }
        if (has_sums && at != last) {
#pragma GCC unroll 4
            for (int lane = 0; lane < lanes; ++lane) scramble(sums[lane]);
        }
    }
    if (!has_sums) return;
    for (int lane = 0; lane < lanes; ++lane) {
        uint64_t words[8];
        store(words, sums[lane]);
        checksums[lane] = merged(words, size);
    }
}

// The same of kLanes blocks.
template <Write write, bool has_sums, int near>
DISTKV_LANES_TARGET void work_on_lanes(char* const* to, const char* const* from, const char* const* next, int64_t size,
                                       uint64_t* checksums) {
    constexpr int lanes = Turns<write>::kAtOnce;
#pragma GCC unroll 2
    for (int first = 0; first < kLanes; first += lanes) {
        const bool ends = first + lanes == kLanes;
        work_at_once<write, has_sums, near>(to + first, from + first, ends ? next : from + first + lanes, size,
                                            has_sums ? checksums + first : nullptr);
    }
}
