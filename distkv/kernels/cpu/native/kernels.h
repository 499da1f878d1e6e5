// Everything that is compiled once per dispatch level.
#pragma once

#include "abi.h"
#include "attention.h"
#include "layer_tail.h"
#include "layers.h"
#include "linear.h"
#include "ops.h"
#include "store.h"
#include "stream.h"
