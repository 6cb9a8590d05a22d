/* SPDX-License-Identifier: Apache-2.0 */
/* For machines that only an emulator stands for: every tier of the CPU backend that runs here gives what the portable one
 * gives, to the rounding of P's codes. With the C ABI alone, so that cross-compiling it needs nothing else. */
#include <clary/clary.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kHeads = 2, kKvHeads = 1, kMostDim = 128, kMostLen = 300 };

static float values[4][kHeads * kMostLen * kMostDim];

static float noise(unsigned* state) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
        *state = *state * 1664525u + 1013904223u;
        sum += (float)(*state >> 8) / 8388608.0f - 1.0f;
    }
    return sum;
}

static clary_tensor view(float* data, int64_t heads, int64_t length, int64_t dim) {
    clary_tensor t;
    memset(&t, 0, sizeof t);
    t.data = data;
    t.dtype = CLARY_FP32;
    t.device = CLARY_CPU;
    t.ndim = 4;
    t.shape[0] = 1, t.shape[1] = heads, t.shape[2] = length, t.shape[3] = dim;
    t.stride[0] = heads * length * dim, t.stride[1] = length * dim, t.stride[2] = dim, t.stride[3] = 1;
    return t;
}

/* 0, and the result in `out`; 1 where the tier is not of this machine. */
static int run(const char* backend, const char* recipe, int q_len, int kv_len, int dim, float* out) {
    clary_attention_params p;
    memset(&p, 0, sizeof p);
    p.struct_size = sizeof p;
    p.q = view(values[0], kHeads, q_len, dim);
    p.k = view(values[1], kKvHeads, kv_len, dim);
    p.v = view(values[2], kKvHeads, kv_len, dim);
    p.out = view(out, kHeads, q_len, dim);
    p.causal = CLARY_CAUSAL_BOTTOM_RIGHT;
    p.recipe = recipe;
    p.backend = backend;
    if (clary_attention(&p) == CLARY_OK) return 0;
    fprintf(stderr, "%s %s: %s\n", backend, recipe, clary_last_error());
    return 1;
}

int main(int argc, char** argv) {
    static const char* const kRecipes[] = {"int8_int8",
                                           "int8_int8:fast",
                                           "int8_int8+tile=64",
                                           "int8_fp16",
                                           "int8_bf16",
                                           "fp32_fp32",
                                           "int8_int8:fast+v_scale=channel_tile+smooth_v"};
    static const int kShapes[][3] = {{300, 300, 64}, {1, 257, 128}, {37, 90, 40}, {5, 16, 9}};
    if (argc != 2) {
        fprintf(stderr, "usage: tiers TIER\n");
        return 2;
    }
    unsigned state = 1;
    for (int t = 0; t < 3; ++t)
        for (size_t i = 0; i < sizeof values[t] / sizeof values[t][0]; ++i) values[t][i] = noise(&state);
    char backend[32];
    snprintf(backend, sizeof backend, "cpu:%s", argv[1]);
    float* const expected = malloc(sizeof values[3]);
    double worst = 0;
    for (size_t r = 0; r < sizeof kRecipes / sizeof kRecipes[0]; ++r)
        for (size_t s = 0; s < sizeof kShapes / sizeof kShapes[0]; ++s) {
            const int q_len = kShapes[s][0], kv_len = kShapes[s][1], dim = kShapes[s][2];
            memset(values[3], 0xff, sizeof values[3]);
            if (run("cpu:generic", kRecipes[r], q_len, kv_len, dim, expected) ||
                run(backend, kRecipes[r], q_len, kv_len, dim, values[3]))
                return 1;
            double off = 0, size = 0;
            for (int i = 0; i < kHeads * q_len * dim; ++i) {
                off += fabs((double)values[3][i] - (double)expected[i]);
                size += fabs((double)expected[i]);
            }
            if (!(off / size <= worst)) worst = off / size;
            if (!(off / size <= 1e-3)) {
                fprintf(stderr, "%s %s %d x %d x %d: relative L1 %.3g from the portable tier; allowed: 1e-3\n", backend,
                        kRecipes[r], q_len, kv_len, dim, off / size);
                return 1;
            }
        }
    free(expected);
    printf("%s agrees with the portable tier: relative L1 at most %.2g\n", backend, worst);
    return 0;
}
