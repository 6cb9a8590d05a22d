// SPDX-License-Identifier: Apache-2.0
// Fuzzes the safetensors reader; what it accepts must survive a round trip.
#include "io/safetensors.h"

#include "round_trip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace clary::io;
    check_round_trip(std::as_bytes(std::span(data, size)), safetensors::read, safetensors::write);
    return 0;
}
