// The threads that this library computes with, shared by everyone who calls it.

#pragma once

#include <cstddef>

// Calls work(context, item) for every item in [0, items), on the caller's thread and on idle threads of the pool, and
// returns when all are done. serving: for a peer; threads of the pool take its items before those of the own step. Throws
// std::bad_alloc when an item did, and not before nobody works on any more of them.
void distkv_parallel(int items, bool serving, void (*work)(void*, int), void* context);

// How many threads compute when nobody else does: those of the pool and the caller.
int distkv_num_threads();

// When work that is not for peers last went on, as monotonic_s(): now, if it does; 0 if never.
double distkv_own_work_s();

template <class F>
void parallel(int items, bool serving, const F& work) {
    distkv_parallel(
        items, serving, [](void* context, int item) { (*static_cast<const F*>(context))(item); },
        const_cast<void*>(static_cast<const void*>(&work)));
}
