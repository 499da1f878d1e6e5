// What Python can call: plain C functions, those of a dispatch level named `distkv_<name>_<level>`.
#pragma once

#define DISTKV_EXPORT extern "C" __attribute__((visibility("default")))

#ifdef DISTKV_LEVEL

#define DISTKV_PASTE_(name, level) distkv_##name##_##level
#define DISTKV_PASTE(name, level) DISTKV_PASTE_(name, level)

// DISTKV_API(void, merge)(const float* out, ...) { ... } defines what Python finds as `merge` of this level.
#define DISTKV_API(type, name) DISTKV_EXPORT type DISTKV_PASTE(name, DISTKV_LEVEL)

// Changes with every function that takes other arguments; library.py expects the same number.
DISTKV_API(int, abi)() { return 7; }

#endif
