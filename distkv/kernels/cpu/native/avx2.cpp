#define DISTKV_LEVEL avx2
#include "kernels.h"
