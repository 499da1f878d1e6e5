#define DISTKV_LEVEL portable
#include "kernels.h"
