/* SPDX-License-Identifier: Apache-2.0
 *
 * The C ABI from plain C99: every function, right and wrong use. Links the shared library, includes nothing else of the
 * project. Exit code 0: all checks passed; each failed check prints a line. */
#include <clary/clary.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            ++failures;                                                                             \
            fprintf(stderr, "%s:%d: failed: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
                    clary_last_error());                                                            \
        }                                                                                           \
    } while (0)

/* The call fails with `status`, and the text names `what`. */
#define CHECK_FAILS(call, status, what)                    \
    do {                                                   \
        CHECK((call) == (status));                         \
        CHECK(strstr(clary_last_error(), (what)) != NULL); \
        CHECK(strchr(clary_last_error(), '\n') == NULL);   \
    } while (0)

enum { kBatch = 1, kHeads = 4, kKvHeads = 2, kQLen = 20, kKvLen = 70, kDim = 32 };

static float q[kBatch * kHeads * kQLen * kDim], k[kBatch * kKvHeads * kKvLen * kDim],
    v[kBatch * kKvHeads * kKvLen * kDim];
static float out[kBatch * kHeads * kQLen * kDim], lse[kBatch * kHeads * kQLen];
static float out2[kBatch * kHeads * kQLen * kDim], lse2[kBatch * kHeads * kQLen];

static clary_tensor tensor(void* data, int32_t ndim, int64_t a, int64_t b, int64_t c, int64_t d) {
    clary_tensor t;
    int64_t stride = 1;
    int32_t i;
    memset(&t, 0, sizeof(t));
    t.data = data;
    t.dtype = CLARY_FP32;
    t.ndim = ndim;
    t.shape[0] = a;
    t.shape[1] = b;
    t.shape[2] = c;
    t.shape[3] = d;
    for (i = ndim - 1; i >= 0; --i) {
        t.stride[i] = stride;
        stride *= t.shape[i];
    }
    return t;
}

static clary_attention_params make(void) {
    clary_attention_params p;
    memset(&p, 0, sizeof(p));
    p.struct_size = sizeof(p);
    p.q = tensor(q, 4, kBatch, kHeads, kQLen, kDim);
    p.k = tensor(k, 4, kBatch, kKvHeads, kKvLen, kDim);
    p.v = tensor(v, 4, kBatch, kKvHeads, kKvLen, kDim);
    p.out = tensor(out, 4, kBatch, kHeads, kQLen, kDim);
    p.lse = tensor(lse, 3, kBatch, kHeads, kQLen, 0);
    p.backend = "cpu";
    return p;
}

static void fill(float* x, size_t count, unsigned seed) {
    size_t i;
    for (i = 0; i < count; ++i) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

static void test_names(void) {
    int i;
    CHECK(strcmp(clary_last_error(), "") == 0); /* nothing has failed yet */
    CHECK(strcmp(clary_last_kernel(), "") == 0);
    CHECK(strcmp(clary_status_string(CLARY_OK), "ok") == 0);
    CHECK(strcmp(clary_status_string(CLARY_INVALID_ARGUMENT), "invalid_argument") == 0);
    CHECK(strcmp(clary_status_string(CLARY_INTERNAL), "internal") == 0);
    for (i = 0; i <= CLARY_INTERNAL; ++i) CHECK(strcmp(clary_status_string((clary_status)i), "unknown") != 0);
    CHECK(strcmp(clary_status_string((clary_status)99), "unknown") == 0);
    CHECK(strlen(clary_version()) >= 5);
    CHECK(strstr(clary_build_info(), clary_version()) != NULL);
}

static void test_contexts(void) {
    clary_context* context = NULL;
    int i;
    CHECK(clary_context_create(3, &context) == CLARY_OK);
    CHECK(clary_context_threads(context) == 3);
    clary_context_destroy(context);
    CHECK(clary_context_create(0, &context) == CLARY_OK);
    CHECK(clary_context_threads(context) >= 1);
    CHECK(clary_context_threads(NULL) >= 1);
    clary_context_destroy(context);
    clary_context_destroy(NULL);
    CHECK_FAILS(clary_context_create(-1, &context), CLARY_INVALID_ARGUMENT, "threads: -1; allowed");
    CHECK_FAILS(clary_context_create(5000, &context), CLARY_INVALID_ARGUMENT, "threads: 5000; allowed");
    CHECK_FAILS(clary_context_create(1, NULL), CLARY_INVALID_ARGUMENT, "context: null");
    for (i = 0; i < 100; ++i) {
        clary_attention_params p = make();
        CHECK(clary_context_create(1 + i % 4, &context) == CLARY_OK);
        p.context = context;
        CHECK(i % 10 != 0 || clary_attention(&p) == CLARY_OK); /* some are destroyed before their threads start */
        clary_context_destroy(context);
    }
}

/* Memory for a layout; its .data is the caller's to free. */
static clary_packed packed(const clary_packed_layout* layout, int64_t kv_capacity) {
    clary_packed buffer;
    memset(&buffer, 0, sizeof(buffer));
    buffer.struct_size = sizeof(buffer);
    buffer.data = aligned_alloc(64, (size_t)layout->bytes);
    buffer.bytes = (size_t)layout->bytes;
    buffer.kv_capacity = kv_capacity;
    memset(buffer.data, 0, buffer.bytes);
    return buffer;
}

static void test_one_shot_and_two_phases(void) {
    clary_attention_params p = make();
    clary_packed_layout q_layout, kv_layout;
    clary_packed packed_q, packed_kv, other;
    size_t bytes = 0;
    int32_t i;
    void* workspace;

    CHECK(clary_attention(&p) == CLARY_OK);
    CHECK(strstr(clary_last_kernel(), "int8_int8") != NULL);
    memcpy(out2, out, sizeof(out));
    memcpy(lse2, lse, sizeof(lse));

    memset(&q_layout, 0, sizeof(q_layout));
    memset(&kv_layout, 0, sizeof(kv_layout));
    CHECK_FAILS(clary_packed_layouts(&p, 0, &q_layout, &kv_layout), CLARY_INVALID_ARGUMENT, "q_layout: struct_size 0");
    q_layout.struct_size = kv_layout.struct_size = sizeof(q_layout);
    CHECK(clary_packed_layouts(&p, 0, &q_layout, &kv_layout) == CLARY_OK);
    CHECK(q_layout.struct_size == sizeof(q_layout) && kv_layout.struct_size == sizeof(kv_layout));
    CHECK(q_layout.is_kv == 0 && kv_layout.is_kv == 1);
    CHECK(strstr(kv_layout.recipe, "int8_int8") != NULL);
    CHECK(kv_layout.section_count > 5 && kv_layout.section_count <= CLARY_MAX_SECTIONS);
    CHECK(clary_packed_layouts(&p, 0, NULL, NULL) == CLARY_OK);
    packed_q = packed(&q_layout, 0);
    packed_kv = packed(&kv_layout, 0);
    CHECK(clary_quantize(&p, &packed_q, &packed_kv, NULL) == CLARY_OK);
    memset(out, 0xff, sizeof(out));
    CHECK(clary_attend(&p, &packed_q, &packed_kv) == CLARY_OK);
    CHECK(memcmp(out, out2, sizeof(out)) == 0);
    CHECK(memcmp(lse, lse2, sizeof(lse)) == 0);

    /* Workspaces: too small, not aligned, just right. */
    CHECK(clary_workspace_size(&p, 1, &bytes) == CLARY_OK);
    workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
    p.workspace = workspace;
    p.workspace_size = bytes - 1;
    CHECK_FAILS(clary_attention(&p), CLARY_WORKSPACE_TOO_SMALL, "workspace_size");
    p.workspace_size = bytes;
    p.workspace = (char*)workspace + 4;
    CHECK_FAILS(clary_attention(&p), CLARY_INVALID_ARGUMENT, "workspace: not aligned; allowed: a multiple of 64");
    p.workspace = workspace;
    CHECK(clary_attention(&p) == CLARY_OK);
    CHECK(memcmp(out, out2, sizeof(out)) == 0);
    free(workspace);

    /* Wrong use of the two phases. */
    p = make();
    CHECK_FAILS(clary_quantize(&p, NULL, NULL, NULL), CLARY_INVALID_ARGUMENT, "q and kv: null");
    CHECK_FAILS(clary_quantize(&p, &packed_q, NULL, NULL), CLARY_INVALID_ARGUMENT, "kv_ready: null");
    CHECK_FAILS(clary_quantize(&p, &packed_q, &packed_kv, &packed_kv), CLARY_INVALID_ARGUMENT, "kv_ready: given");
    other = packed_kv;
    other.kv_capacity = 5;
    CHECK_FAILS(clary_quantize(&p, &packed_q, &other, NULL), CLARY_INVALID_ARGUMENT, "kv_capacity: 5");
    other.kv_capacity = -1;
    CHECK_FAILS(clary_quantize(&p, &packed_q, &other, NULL), CLARY_INVALID_ARGUMENT, "kv_capacity: -1");
    other = packed_kv;
    other.bytes -= 1;
    CHECK_FAILS(clary_attend(&p, &packed_q, &other), CLARY_INVALID_ARGUMENT, "kv: ");
    other = packed_kv;
    other.data = (char*)other.data + 4;
    CHECK_FAILS(clary_attend(&p, &packed_q, &other), CLARY_INVALID_ARGUMENT,
                "kv: not aligned; allowed: a multiple of 64");
    other = packed_kv;
    other.struct_size = 0;
    CHECK_FAILS(clary_attend(&p, &packed_q, &other), CLARY_INVALID_ARGUMENT, "kv: struct_size 0");
    CHECK_FAILS(clary_attend(&p, NULL, &packed_kv), CLARY_INVALID_ARGUMENT, "q: null");
    CHECK_FAILS(clary_attend(&p, &packed_q, NULL), CLARY_INVALID_ARGUMENT, "kv: null");
    CHECK_FAILS(clary_append_kv(&p, NULL), CLARY_INVALID_ARGUMENT, "kv: null");
    CHECK_FAILS(clary_append_kv(&p, &packed_kv), CLARY_INVALID_ARGUMENT, "kv_capacity: 0");

    /* A buffer used as something else than it was packed as. */
    p.has_scale = 1;
    p.scale = 0.5;
    CHECK_FAILS(clary_attend(&p, &packed_q, &packed_kv), CLARY_INVALID_ARGUMENT, "scale: 0.5, but q was packed with");
    p = make();
    p.recipe = "int8_int8:fast";
    CHECK_FAILS(clary_attend(&p, &packed_q, &packed_kv), CLARY_INVALID_ARGUMENT, "was not packed for these shapes");
    p = make();
    other = packed(&kv_layout, 0);
    CHECK_FAILS(clary_attend(&p, &packed_q, &other), CLARY_INVALID_ARGUMENT, "kv: is not a packed buffer");
    k[0] += 100; /* another K has another mean, and Q was packed against that of the first */
    CHECK(clary_quantize(&p, NULL, &other, NULL) == CLARY_OK);
    k[0] -= 100;
    CHECK_FAILS(clary_attend(&p, &packed_q, &other), CLARY_INVALID_ARGUMENT, "q: was packed for another K and V");
    /* Lengths that lie, as a damaged file has them. */
    for (i = 0; i < kv_layout.section_count; ++i) {
        if (strcmp(kv_layout.sections[i].name, "lengths") != 0) continue;
        ((int64_t*)((char*)packed_kv.data + kv_layout.sections[i].offset))[0] = -5;
        CHECK_FAILS(clary_attend(&p, &packed_q, &packed_kv), CLARY_INVALID_ARGUMENT, "kv: holds a length of -5");
        ((int64_t*)((char*)packed_kv.data + kv_layout.sections[i].offset))[0] = kKvLen + 1;
        CHECK_FAILS(clary_attend(&p, &packed_q, &packed_kv), CLARY_INVALID_ARGUMENT, "kv: holds a length of 71");
    }
    free(other.data);
    p = make();
    p.q.data = NULL;
    CHECK_FAILS(clary_quantize(&p, &packed_q, &packed_kv, NULL), CLARY_INVALID_ARGUMENT, "q.data: null");
    p = make();
    p.v.data = NULL;
    CHECK_FAILS(clary_quantize(&p, &packed_q, &packed_kv, NULL), CLARY_INVALID_ARGUMENT, "v.data: null");
    p = make();
    p.backend = "reference";
    CHECK_FAILS(clary_quantize(&p, &packed_q, &packed_kv, NULL), CLARY_UNSUPPORTED, "reference");
    free(packed_q.data);
    free(packed_kv.data);
}

static void test_append(void) {
    clary_attention_params p = make();
    clary_packed_layout kv_layout;
    clary_packed cache;
    p.recipe = "int8_fp16";
    kv_layout.struct_size = sizeof(kv_layout);
    CHECK(clary_packed_layouts(&p, 200, NULL, &kv_layout) == CLARY_OK);
    cache = packed(&kv_layout, 200);
    CHECK(clary_quantize(&p, NULL, &cache, NULL) == CLARY_OK);
    CHECK(clary_append_kv(&p, &cache) == CLARY_OK);
    CHECK_FAILS(clary_append_kv(&p, &cache), CLARY_INVALID_ARGUMENT,
                "k: 70 tokens behind the 140 of sequence 0 pass the capacity; allowed: 60 more");
    free(cache.data);
}

static void test_null_and_size(void) {
    clary_attention_params p = make();
    clary_kernel_info info;
    clary_packed packed_any;
    const char* json = NULL;
    size_t bytes = 0;
    float marker = out[0] = 12345.0f;
    CHECK_FAILS(clary_attention(NULL), CLARY_INVALID_ARGUMENT, "params: null; allowed");
    CHECK_FAILS(clary_workspace_size(NULL, 1, &bytes), CLARY_INVALID_ARGUMENT, "params: null");
    CHECK_FAILS(clary_workspace_size(&p, 1, NULL), CLARY_INVALID_ARGUMENT, "bytes: null");
    CHECK_FAILS(clary_packed_layouts(NULL, 0, NULL, NULL), CLARY_INVALID_ARGUMENT, "params: null");
    CHECK_FAILS(clary_quantize(NULL, &packed_any, &packed_any, NULL), CLARY_INVALID_ARGUMENT, "params: null");
    CHECK_FAILS(clary_attend(NULL, &packed_any, &packed_any), CLARY_INVALID_ARGUMENT, "params: null");
    CHECK_FAILS(clary_append_kv(NULL, &packed_any), CLARY_INVALID_ARGUMENT, "params: null");
    CHECK_FAILS(clary_explain(NULL, &json), CLARY_INVALID_ARGUMENT, "params: null");
    CHECK_FAILS(clary_explain(&p, NULL), CLARY_INVALID_ARGUMENT, "json: null");
    CHECK_FAILS(clary_kernel_get(0, NULL), CLARY_INVALID_ARGUMENT, "info: null");
    memset(&info, 0, sizeof(info));
    CHECK_FAILS(clary_kernel_get(0, &info), CLARY_INVALID_ARGUMENT, "struct_size 0; allowed");
    info.struct_size = sizeof(info);
    CHECK_FAILS(clary_kernel_get(-1, &info), CLARY_INVALID_ARGUMENT, "index: -1; allowed: 0..");
    CHECK_FAILS(clary_kernel_get(clary_kernel_count(), &info), CLARY_INVALID_ARGUMENT, "index");
    p.struct_size = 8;
    CHECK_FAILS(clary_attention(&p), CLARY_INVALID_ARGUMENT, "struct_size 8; allowed");
    /* A caller built against a later header: fine while it sets nothing that this version does not know. */
    {
        struct {
            clary_attention_params params;
            int64_t later;
        } newer;
        memset(&newer, 0, sizeof(newer));
        newer.params = make();
        newer.params.struct_size = sizeof(newer);
        CHECK(clary_explain(&newer.params, &json) == CLARY_OK);
        newer.later = 1;
        CHECK_FAILS(clary_explain(&newer.params, &json), CLARY_UNSUPPORTED, "is set; allowed: fields of this version");
    }
    CHECK(out[0] == marker); /* failures write nothing */
}

static void test_kernels(void) {
    int32_t i, usable = 0;
    for (i = 0; i < clary_kernel_count(); ++i) {
        clary_kernel_info info;
        memset(&info, 0, sizeof(info));
        info.struct_size = sizeof(info);
        CHECK(clary_kernel_get(i, &info) == CLARY_OK);
        CHECK(strncmp(info.name, info.backend, strlen(info.backend)) == 0);
        CHECK(strstr(info.name, info.recipe) != NULL);
        CHECK((info.usable != 0) == (info.reason[0] == '\0'));
        usable += info.usable;
    }
    CHECK(usable >= 2);
}

static void test_merge(void) {
    float a[2 * 4] = {1, 1, 1, 1, 2, 2, 2, 2}, b[2 * 4] = {3, 3, 3, 3, 6, 6, 6, 6};
    float la[2] = {0, 0}, lb[2] = {0, 0};
    clary_tensor out_a = tensor(a, 4, 1, 1, 2, 4), out_b = tensor(b, 4, 1, 1, 2, 4);
    clary_tensor lse_a = tensor(la, 3, 1, 1, 2, 0), lse_b = tensor(lb, 3, 1, 1, 2, 0);
    clary_tensor bad;
    clary_merge_params m;
    lb[1] = logf(3);
    memset(&m, 0, sizeof(m));
    m.struct_size = sizeof(m);
    m.out_a = out_a;
    m.lse_a = lse_a;
    m.out_b = out_b;
    m.lse_b = lse_b;
    CHECK(clary_merge(&m) == CLARY_OK);
    CHECK(fabsf(a[0] - 2) < 1e-6f && fabsf(a[4] - 5) < 1e-6f);
    CHECK(fabsf(la[0] - logf(2)) < 1e-6f && fabsf(la[1] - logf(4)) < 1e-6f);
    /* -inf on one side, whose row may hold anything; on both sides. */
    a[0] = a[1] = a[2] = a[3] = NAN;
    la[0] = -INFINITY;
    la[1] = lb[1] = -INFINITY;
    a[4] = 0;
    b[4] = 0;
    CHECK(clary_merge(&m) == CLARY_OK);
    CHECK(a[0] == 3 && la[0] == 0);
    CHECK(a[4] == 0 && isinf(la[1]) && la[1] < 0);
    la[0] = 1;
    lb[0] = -INFINITY;
    b[0] = NAN;
    CHECK(clary_merge(&m) == CLARY_OK);
    CHECK(a[0] == 3 && la[0] == 1);
    /* NaN says that a side is broken: so is the sum. */
    lb[0] = NAN;
    CHECK(clary_merge(&m) == CLARY_OK);
    CHECK(isnan(a[0]) && isnan(la[0]));
    /* A difference beyond exp's range. */
    la[1] = 1000;
    lb[1] = -1000;
    a[4] = 7;
    CHECK(clary_merge(&m) == CLARY_OK);
    CHECK(a[4] == 7 && la[1] == 1000);
    CHECK_FAILS(clary_merge(NULL), CLARY_INVALID_ARGUMENT, "params: null");
    bad = lse_b;
    bad.shape[2] = 3;
    m.lse_b = bad;
    CHECK_FAILS(clary_merge(&m), CLARY_INVALID_ARGUMENT, "lse_b: tokens is 3");
    m.lse_b = lse_b;
    m.out_a.stride[2] = 0;
    CHECK_FAILS(clary_merge(&m), CLARY_INVALID_ARGUMENT, "out_a: stride[2] is 0");
    m.out_a = out_a;
    m.lse_a.dtype = CLARY_FP16;
    CHECK_FAILS(clary_merge(&m), CLARY_INVALID_ARGUMENT, "lse_a: dtype fp16");
    m.lse_a = lse_a;
    /* Packed sequences: out [T, H, D], lse [H, T]; here two tokens of one head. */
    m.out_a = tensor(a, 3, 2, 1, 4, 0);
    m.out_b = tensor(b, 3, 2, 1, 4, 0);
    m.lse_a = tensor(la, 2, 1, 2, 0, 0);
    m.lse_b = tensor(lb, 2, 1, 2, 0, 0);
    a[0] = 1;
    b[0] = 3;
    a[4] = 2;
    b[4] = 6;
    la[0] = lb[0] = la[1] = 0;
    lb[1] = logf(3);
    CHECK(clary_merge(&m) == CLARY_OK);
    CHECK(fabsf(a[0] - 2) < 1e-6f && fabsf(a[4] - 5) < 1e-6f && fabsf(la[1] - logf(4)) < 1e-6f);
}

static void test_dlpack(void) {
    /* DLTensor of DLPack 1.0, as a producer would fill it. */
    struct {
        void* data;
        int32_t device_type, device_id, ndim;
        uint8_t code, bits;
        uint16_t lanes;
        const int64_t *shape, *strides;
        uint64_t byte_offset;
    } dl;
    const int64_t shape[3] = {2, 3, 4}, strides[3] = {12, 1, 3};
    clary_tensor t;
    memset(&dl, 0, sizeof(dl));
    dl.data = q;
    dl.device_type = 1;
    dl.ndim = 3;
    dl.code = 2;
    dl.bits = 32;
    dl.lanes = 1;
    dl.shape = shape;
    dl.byte_offset = 8;
    CHECK(clary_tensor_from_dlpack(&dl, &t) == CLARY_OK);
    CHECK(t.data == (void*)(q + 2) && t.dtype == CLARY_FP32 && t.ndim == 3);
    CHECK(t.stride[0] == 12 && t.stride[1] == 4 && t.stride[2] == 1);
    dl.strides = strides;
    dl.code = 4;
    dl.bits = 16;
    CHECK(clary_tensor_from_dlpack(&dl, &t) == CLARY_OK);
    CHECK(t.dtype == CLARY_BF16 && t.stride[1] == 1 && t.stride[2] == 3);
    dl.lanes = 2;
    CHECK_FAILS(clary_tensor_from_dlpack(&dl, &t), CLARY_INVALID_ARGUMENT, "dl_tensor");
    dl.lanes = 1;
    dl.ndim = 9;
    CHECK_FAILS(clary_tensor_from_dlpack(&dl, &t), CLARY_INVALID_ARGUMENT, "9 dimensions; allowed");
    CHECK_FAILS(clary_tensor_from_dlpack(NULL, &t), CLARY_INVALID_ARGUMENT, "null");
    CHECK_FAILS(clary_tensor_from_dlpack(&dl, NULL), CLARY_INVALID_ARGUMENT, "null");
}

static void test_unsupported(void) {
    clary_attention_params p = make();
    p.recipe = "int8_fp8"; /* only the reference has it on a CPU */
    CHECK_FAILS(clary_attention(&p), CLARY_UNSUPPORTED, "int8_fp8");
    p.recipe = "int9_int8";
    CHECK_FAILS(clary_attention(&p), CLARY_INVALID_ARGUMENT,
                "recipe: unknown name 'int9_int8'; allowed: auto, int8_int8");
    p.recipe = NULL;
    p.backend = "maca";
    CHECK_FAILS(clary_attention(&p), CLARY_NO_DEVICE, "backend: 'maca'");
    p.backend = "tpu";
    CHECK_FAILS(clary_attention(&p), CLARY_INVALID_ARGUMENT, "backend: 'tpu' is unknown; allowed: auto, cpu");
    p.backend = "reference";
    CHECK(clary_attention(&p) == CLARY_OK);
    CHECK(strcmp(clary_last_kernel(), "reference_int8_int8") == 0);
    p.backend = NULL;
    CHECK(clary_attention(&p) == CLARY_OK);
    CHECK(strncmp(clary_last_kernel(), "cpu_", 4) == 0);
}

int main(void) {
    fill(q, sizeof(q) / sizeof(*q), 1);
    fill(k, sizeof(k) / sizeof(*k), 2);
    fill(v, sizeof(v) / sizeof(*v), 3);
    test_names();
    test_one_shot_and_two_phases();
    test_append();
    test_contexts();
    test_null_and_size();
    test_kernels();
    test_merge();
    test_dlpack();
    test_unsupported();
    if (failures == 0) puts("all checks passed");
    return failures != 0;
}
