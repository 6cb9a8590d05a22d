/* SPDX-License-Identifier: Apache-2.0
 *
 * Uses an installed Clary from plain C99: version, one attention call checked against the formula, one error.
 */
#include <clary/clary.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { kQueries = 24, kKeys = 40, kHeadDim = 32 };

static float q[kQueries][kHeadDim], k[kKeys][kHeadDim], v[kKeys][kHeadDim], out[kQueries][kHeadDim];

/* Deterministic values in [-1, 1). */
static float next_value(void) {
    static uint32_t state = 12345u;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

/* One batch item, one head: [1, 1, tokens, kHeadDim], contiguous. */
static clary_tensor view(void* data, int64_t tokens) {
    clary_tensor t;
    memset(&t, 0, sizeof t);
    t.data = data;
    t.dtype = CLARY_FP32;
    t.device = CLARY_CPU;
    t.ndim = 4;
    t.shape[0] = t.shape[1] = 1;
    t.shape[2] = tokens;
    t.shape[3] = kHeadDim;
    t.stride[0] = t.stride[1] = tokens * kHeadDim;
    t.stride[2] = kHeadDim;
    t.stride[3] = 1;
    return t;
}

/* sum |out - exact| / sum |exact|, with the exact result in double. */
static double relative_l1(void) {
    double error = 0.0, size = 0.0;
    for (int i = 0; i < kQueries; ++i) {
        double row[kHeadDim] = {0.0}, denominator = 0.0;
        for (int j = 0; j < kKeys; ++j) {
            double score = 0.0;
            for (int d = 0; d < kHeadDim; ++d) score += (double)q[i][d] * k[j][d];
            const double weight = exp(score / sqrt((double)kHeadDim));
            denominator += weight;
            for (int d = 0; d < kHeadDim; ++d) row[d] += weight * v[j][d];
        }
        for (int d = 0; d < kHeadDim; ++d) {
            error += fabs(out[i][d] - row[d] / denominator);
            size += fabs(row[d] / denominator);
        }
    }
    return error / size;
}

static int fail(const char* what) {
    fprintf(stderr, "consumer_c: %s: %s\n", what, clary_last_error());
    return 1;
}

int main(void) {
    char expected[32];
    snprintf(expected, sizeof expected, "%d.%d.%d", CLARY_VERSION_MAJOR, CLARY_VERSION_MINOR, CLARY_VERSION_PATCH);
    const size_t length = strcspn(clary_version(), "+"); /* what follows tells builds between releases apart */
    if (length != strlen(expected) || strncmp(clary_version(), expected, length) != 0)
        return fail("header and library differ in version");

    for (int i = 0; i < kQueries * kHeadDim; ++i) (&q[0][0])[i] = 3.0f * next_value();
    for (int i = 0; i < kKeys * kHeadDim; ++i) (&k[0][0])[i] = next_value();
    for (int i = 0; i < kKeys * kHeadDim; ++i) (&v[0][0])[i] = next_value();

    clary_attention_params params;
    memset(&params, 0, sizeof params);
    params.struct_size = sizeof params;
    params.q = view(q, kQueries);
    params.k = view(k, kKeys);
    params.v = view(v, kKeys);
    params.out = view(out, kQueries);
    if (clary_attention(&params) != CLARY_OK) return fail("clary_attention");
    /* 8-bit attention on uniform data is within 2 % of the formula; a wrong layout or scale is far outside. */
    const double error = relative_l1();
    if (!(error < 0.02)) {
        fprintf(stderr, "consumer_c: relative L1 %.4f, expected < 0.02\n", error);
        return 1;
    }

    params.k.shape[3] = kHeadDim - 1; /* differs from q's */
    if (clary_attention(&params) != CLARY_INVALID_ARGUMENT) return fail("a wrong shape was taken");
    if (strlen(clary_last_error()) == 0) return fail("an error without a text");

    printf("consumer_c: Clary %s, kernel %s, relative L1 %.5f\n", clary_version(), clary_last_kernel(), error);
    return 0;
}
