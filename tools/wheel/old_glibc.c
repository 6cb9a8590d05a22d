/* SPDX-License-Identifier: Apache-2.0
 *
 * What objects of this machine's g++ and libstdc++ ask of a glibc that is newer than a wheel's target (2.28).
 */
#include <stddef.h>
#include <stdint.h>

#define HIDDEN __attribute__((visibility("hidden")))
int getentropy(void* buffer, size_t length);

/* glibc 2.32: whether there is one thread alone; 0 (perhaps more) costs an atomic instruction. */
HIDDEN char __libc_single_threaded = 0;

/* glibc 2.36, for std::random_device, which the library does not use. */
HIDDEN uint32_t arc4random(void) {
    uint32_t value = 0;
    return getentropy(&value, sizeof value) == 0 ? value : 0;
}
