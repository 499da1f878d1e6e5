#define DISTKV_LEVEL avx512bf16
#include "kernels.h"
