// Included once for each width of vectors, within a namespace that has Sums, first_sums, take, scramble and store, with
// DISTKV_LANES_TARGET: the checksums of several blocks at once, which are copied on the way or not.

// Of kLanes blocks of `size` bytes, a multiple of kBlock, which go past the caches or nowhere; each `to` is aligned by 64
// bytes. next: the blocks that follow in time.
template <Write write>
DISTKV_LANES_TARGET void checksums_of_lanes(char* const* to, const char* const* from, const char* const* next,
                                            int64_t size, uint64_t* checksums) {
    Sums sums[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] = first_sums();
    const int64_t last = size - kBlock;
    for (int64_t at = 0; at <= last; at += kBlock) {
        for (int64_t turn = 0; turn < kStripesPerBlock; turn += kStripesInTurn) {
            for (int lane = 0; lane < kLanes; ++lane) {
                const char* const ahead = at == last ? next[lane] : from[lane] + at + kBlock;
                for (int64_t i = turn; i < turn + kStripesInTurn; ++i) {
                    const bool ends = at == last && i == kStripesPerBlock - 1;
                    const int64_t where = at + i * kStripe;
                    _mm_prefetch(ahead + i * kStripe, _MM_HINT_T0);
                    take<write>(sums[lane], to[lane] + where, from[lane] + where,
                                kSecret + (ends ? kLastStripeKey : 8 * i));
                }
            }
        }
        if (at != last) {
            for (int lane = 0; lane < kLanes; ++lane) scramble(sums[lane]);
        }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
        uint64_t words[8];
        store(words, sums[lane]);
        checksums[lane] = merged(words, size);
    }
}
