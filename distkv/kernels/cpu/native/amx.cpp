#define DISTKV_LEVEL amx
#include "kernels.h"
