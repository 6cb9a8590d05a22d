// SPDX-License-Identifier: Apache-2.0
// See mc_runtime.h.
#pragma once
