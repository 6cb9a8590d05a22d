// SPDX-License-Identifier: Apache-2.0
// The tensors of packed buffers as Hopper's copy engine sees them.
#pragma once

#include "core/status.h"
#include "cuda/sm90/config.h"

namespace clary::cuda::sm90 {

// Fills maps and schedule of params.attention, on a GPU with that many processors and bytes of L2.
Status prepare(Params& params, int processors, int64_t l2_bytes);

}  // namespace clary::cuda::sm90
