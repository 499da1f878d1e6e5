#define DISTKV_LEVEL avx512
#include "kernels.h"
