#define DISTKV_LEVEL amx
#define DISTKV_TILES 1
#include "kernels.h"
