// SPDX-License-Identifier: Apache-2.0
// Fuzzes the npy reader; what it accepts must survive a round trip.
#include "io/npy.h"

#include "round_trip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace clary::io;
    check_round_trip(std::as_bytes(std::span(data, size)), npy::read, npy::write);
    return 0;
}
