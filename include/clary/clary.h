/* SPDX-License-Identifier: Apache-2.0
 *
 * Clary: quantized attention, O = softmax(scale * Q K^T + biases) V, in 8 and 4 bits at 16-bit quality.
 *
 * This C99 header is the library's only binary promise. Rules that hold everywhere:
 * - Zero-initialise a struct, set `struct_size = sizeof(it)`, fill what you need: zero means "not given" or "default".
 * - Tensors are described, never owned. Shapes and strides are int64, strides count elements, any strides are allowed.
 *   The logical order is fixed ([batch, heads, tokens, head_dim]); a memory layout such as [batch, tokens, heads,
 *   head_dim] is said by strides.
 * - Every function answers a clary_status; the text of the last failure in this thread is clary_last_error().
 *   After CLARY_INVALID_ARGUMENT, CLARY_UNSUPPORTED, CLARY_NO_DEVICE and CLARY_WORKSPACE_TOO_SMALL the outputs are as
 *   they were.
 * - A row of Q that is not finite, and every row that sees a K or V token that is not finite, comes out NaN. In quantized
 *   recipes that holds for every row that sees any key of that token's tile (64 or 128 keys).
 * - On a GPU everything that `params` points to (tensors, workspace, packed buffers) lies in the memory of the device of
 *   params->q, a call only queues work on params->stream, and one workspace serves one stream at a time. Its contents
 *   beforehand do not matter. What lies in device memory is not read on the host: lengths, cu_seqlens, block_table and
 *   causal_offsets must hold what is asked for below (kv_lengths are clamped to the keys that exist), and a packed
 *   buffer that was packed as something else gives NaN instead of an error. Calls can be captured into a graph once a
 *   call of the same kind has run (it loads the kernels).
 * - Inputs are never written to; outputs overlap neither an input nor themselves. No function allocates or synchronises
 *   behind your back on a GPU; on the CPU, a workspace may be given or is taken from the heap for the call.
 * - Calls from several threads are safe, also on one context.
 */
#ifndef CLARY_CLARY_H
#define CLARY_CLARY_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#if defined(CLARY_BUILDING)
#define CLARY_API __declspec(dllexport)
#else
#define CLARY_API __declspec(dllimport)
#endif
#else
#define CLARY_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define CLARY_VERSION_MAJOR 0
#define CLARY_VERSION_MINOR 1
#define CLARY_VERSION_PATCH 0

/* ---- status ---------------------------------------------------------------------------------------------------- */

typedef enum clary_status {
    CLARY_OK = 0,
    CLARY_INVALID_ARGUMENT = 1, /* the input is wrong; the text names argument, value and allowed set */
    CLARY_UNSUPPORTED = 2,      /* the input is right, but no kernel of the chosen backend takes it */
    CLARY_NO_DEVICE = 3,        /* the backend is not built in, or its device is absent */
    CLARY_OUT_OF_MEMORY = 4,
    CLARY_WORKSPACE_TOO_SMALL = 5, /* the text names the size that is needed */
    CLARY_DRIVER_ERROR = 6,
    CLARY_INTERNAL = 7 /* a bug of ours: please report the text */
} clary_status;

/* The name of a status, e.g. "invalid_argument". Never null. */
CLARY_API const char* clary_status_string(clary_status status);
/* The text of this thread's last failed call, one line; "" before any failure. Valid until the thread's next call. */
CLARY_API const char* clary_last_error(void);
/* "0.1.0" of a release. Between releases with the commit and a digest of changes that are in none, "0.1.0+g4d153a5.d1b2c3d4",
 * in Python's wheels also with what tells them apart, "0.1.0+cpu.g4d153a5". */
CLARY_API const char* clary_version(void);
/* Version, compiler, build type and backends of this build, one line. */
CLARY_API const char* clary_build_info(void);

/* ---- tensors --------------------------------------------------------------------------------------------------- */

typedef enum clary_dtype {
    CLARY_DTYPE_NONE = 0,
    CLARY_FP32 = 1,
    CLARY_FP16 = 2,
    CLARY_BF16 = 3,
    CLARY_FP64 = 4,
    CLARY_INT8 = 5,
    CLARY_UINT8 = 6,
    CLARY_INT16 = 7,
    CLARY_INT32 = 8,
    CLARY_INT64 = 9,
    CLARY_BOOL = 10, /* one byte, 0 or 1 */
    CLARY_FP8_E4M3 = 11,
    CLARY_FP8_E5M2 = 12
} clary_dtype;

typedef enum clary_device { CLARY_CPU = 0, CLARY_CUDA = 1, CLARY_MACA = 2 } clary_device;

#define CLARY_MAX_DIMS 5

/* A strided view. ndim 0: not given. `data` may be null in clary_explain and the size queries. */
typedef struct clary_tensor {
    void* data;
    int32_t dtype;  /* clary_dtype */
    int32_t device; /* clary_device */
    int32_t device_index;
    int32_t ndim;
    int64_t shape[CLARY_MAX_DIMS];
    int64_t stride[CLARY_MAX_DIMS]; /* in elements; 0 broadcasts */
} clary_tensor;

/* Describes a DLPack tensor: `dl_tensor` points to a DLTensor (its layout has been frozen since DLPack 0.2; for a
 * DLManagedTensor pass the address of its dl_tensor). Fails where its type or device has no name here. */
CLARY_API clary_status clary_tensor_from_dlpack(const void* dl_tensor, clary_tensor* tensor);

/* ---- context --------------------------------------------------------------------------------------------------- */

/* Owns the CPU backend's threads. Null anywhere means the process-wide default context, whose thread count is
 * CLARY_NUM_THREADS or the number of cores this process may use. A child after fork() gets fresh threads. */
typedef struct clary_context clary_context;

/* threads >= 1, or 0 for the default count. */
CLARY_API clary_status clary_context_create(int32_t threads, clary_context** context);
CLARY_API void clary_context_destroy(clary_context* context);
CLARY_API int32_t clary_context_threads(const clary_context* context);

/* ---- the problem ----------------------------------------------------------------------------------------------- */

typedef enum clary_causal {
    CLARY_CAUSAL_NONE = 0,
    CLARY_CAUSAL_TOP_LEFT = 1,     /* key j is visible to query i where j <= i */
    CLARY_CAUSAL_BOTTOM_RIGHT = 2, /* j <= i + kv_len - q_len: the last query sees every key */
    CLARY_CAUSAL_OFFSET = 3        /* j <= i + causal_offset, or + causal_offsets[sequence] */
} clary_causal;

/* One attention problem. H = query heads, Hkv = key/value heads, H % Hkv == 0; query head h reads kv head
 * h / (H / Hkv). Lengths: Lq, Lk; head dims: D of Q and K, Dv of V and the output.
 *
 * Position of query i, for causal masks, windows and ALiBi: i + offset, where offset is 0 for TOP_LEFT, the given
 * offset for OFFSET, and kv_len - q_len otherwise (kv_len: this sequence's own). */
typedef struct clary_attention_params {
    uint32_t struct_size; /* sizeof(clary_attention_params) */

    /* Dense: q [B, H, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv], out [B, H, Lq, Dv], lse [B, H, Lq].
     * Packed ("varlen", when cu_seqlens_q and cu_seqlens_k are given): q [Tq, H, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv],
     * out [Tq, H, Dv], lse [H, Tq].
     * Paged (when block_table is given): k [pages, Hkv, page_size, D], v [pages, Hkv, page_size, Dv].
     * Types: fp32, fp16, bf16, each tensor on its own; lse fp32, natural logarithm of the full denominator (sink
     * included); a row without a visible key gives zeros and lse -inf (with a sink: the sink's logit). lse is
     * optional. */
    clary_tensor q, k, v, out, lse;

    /* Recipe, e.g. "int8_int8:accurate" or "int8_fp16:fast+rotate"; null: "auto". See docs/recipes.md. */
    const char* recipe;
    /* "auto", "cpu", "cpu:avx2", "cuda", "cuda:sm90", "reference", ...: <backend> or <backend>:<arch> of a kernel of this
     * build (clary_kernel_get); null: "auto", which never picks the reference. */
    const char* backend;

    double scale;      /* used when has_scale; 0, or 1e-20 to 1e20 with either sign */
    int32_t has_scale; /* 0: scale is 1 / sqrt(D), and `scale` must be 0 */

    int32_t causal;              /* clary_causal */
    int64_t causal_offset;       /* with CLARY_CAUSAL_OFFSET */
    clary_tensor causal_offsets; /* int32 or int64 [B]: one offset per sequence, instead of causal_offset */

    /* Sliding window around the query's position: position - window_left <= j <= position + window_right; the first
     * window_keep keys stay visible from every query (they still obey the causal mask). */
    int32_t has_window;
    int64_t window_left;  /* >= 0, or -1: unlimited */
    int64_t window_right; /* >= 0, or -1: unlimited */
    int64_t window_keep;  /* >= 0 */

    clary_tensor mask;         /* bool: true = visible; or fp32/fp16/bf16: added to the scaled score (natural units).
                                  [B, H, Lq, Lk], broadcast by shape 1 or stride 0. Not with varlen. */
    clary_tensor kv_lengths;   /* int32 or int64 [B]: keys at or past the length do not exist (padding) */
    clary_tensor alibi_slopes; /* fp32 [H]: adds -slope * |position(i) - j| to the scaled score */
    clary_tensor sinks;        /* fp32 [H]: a learned logit per head that joins the softmax's denominator */

    clary_tensor cu_seqlens_q; /* int32 or int64 [B + 1], from 0 to Tq, not decreasing */
    clary_tensor cu_seqlens_k; /* int32 or int64 [B + 1], from 0 to Tk, not decreasing */
    int64_t max_seqlen_q; /* varlen: the longest sequence; 0: found from cu_seqlens on the CPU; on a GPU 0 stands for
                                  all tokens, which is right but starts more blocks than are needed */
    int64_t max_seqlen_k;

    clary_tensor block_table; /* int32 or int64 [B, max pages]: page of K and V for each page_size keys of a sequence */

    /* Smoothing vectors to use instead of the computed means, fp32: c_k [B, Hkv, D], c_q [B, Hkv, D], and the frozen
     * base of Q's row scales, q_base [B, Hkv]. A cache keeps its prefill's. */
    clary_tensor c_k, c_q, q_base;

    clary_context* context; /* null: the default context */
    void* stream;           /* CUDA or MXMACA stream; ignored on the CPU */
    void* workspace; /* null on the CPU: taken from the heap; at least clary_workspace_size bytes, 64-aligned; on a
                               GPU device memory, which two calls that may run at once must not share, and which
                               clary_attend needs for few queries with many keys (docs/decisions/0012-keys-in-pieces.md) */
    size_t workspace_size;
} clary_attention_params;

/* Attention in one call: quantizes, attends, writes out (and lse). Same bits as clary_quantize + clary_attend. */
CLARY_API clary_status clary_attention(const clary_attention_params* params);

/* Bytes of workspace for this problem on params->context: of clary_attention (one_shot 1), or of each of clary_quantize, clary_attend and
 * clary_append_kv (one_shot 0). */
CLARY_API clary_status clary_workspace_size(const clary_attention_params* params, int32_t one_shot, size_t* bytes);

/* ---- two phases: quantize, attend ------------------------------------------------------------------------------- */

#define CLARY_MAX_SECTIONS 32

/* One array inside a packed buffer. */
typedef struct clary_section {
    char name[24]; /* e.g. "k_codes"; meanings: docs/packed_format.md */
    int32_t dtype; /* clary_dtype */
    int32_t ndim;
    int64_t shape[CLARY_MAX_DIMS]; /* C-contiguous */
    int64_t offset;                /* bytes from the start of the buffer, a multiple of 64 */
} clary_section;

/* Where everything lies in a packed Q, or a packed K and V. Set struct_size before asking for one. */
typedef struct clary_packed_layout {
    uint32_t struct_size; /* sizeof(clary_packed_layout) */
    int32_t section_count;
    int64_t bytes; /* of the whole buffer */
    int32_t tile;  /* keys per tile */
    int32_t is_kv; /* 0: packed Q, 1: packed K and V */
    char recipe[256];
    clary_section sections[CLARY_MAX_SECTIONS];
} clary_packed_layout;

/* A packed buffer: memory of the caller's, laid out as clary_packed_layouts says. It carries what it was packed as
 * (layout, scale, sequence bounds, smoothing vectors); using it as something else is refused on the CPU, and gives NaN on
 * a GPU, where the smoothing vectors are not compared, and sequence bounds only those of the packed Q with those of K and
 * V. It may be stored and loaded by the same version of the library. */
typedef struct clary_packed {
    uint32_t struct_size; /* sizeof(clary_packed) */
    int32_t device;       /* clary_device */
    int32_t device_index;
    void* data;          /* 64-byte aligned */
    size_t bytes;        /* at least the layout's */
    int64_t kv_capacity; /* K and V: what the layout was asked for; packed Q: of the K and V it attends to */
} clary_packed;

/* The layouts that the kernel chosen for `params` reads. `kv_capacity` >= Lk keys are laid out for K and V (0: Lk, and
 * nothing can be appended); keys beyond the current length come by clary_append_kv. Either layout may be null. */
CLARY_API clary_status clary_packed_layouts(const clary_attention_params* params, int64_t kv_capacity,
                                            clary_packed_layout* q_layout, clary_packed_layout* kv_layout);

/* Quantizes params->q into `q` and params->k, v into `kv`. Q is quantized against the vectors that the packed K and V hold
 * (c_k, c_q, q_base), so: both in one call; or q null, which packs K and V (params->q, where it holds data, still gives
 * the statistics of Q); or kv null and `kv_ready` the packed K and V that this Q will attend to (decode steps). */
CLARY_API clary_status clary_quantize(const clary_attention_params* params, const clary_packed* q,
                                      const clary_packed* kv, const clary_packed* kv_ready);

/* Attends packed Q to packed K and V; writes params->out and params->lse. params->q, k, v give shapes and types only;
 * their data is not read and may be null. params->kv_lengths, where given, may see less than the packed keys. Where a GPU is
 * to work on the keys of a cache in pieces, k has the shape of its capacity. */
CLARY_API clary_status clary_attend(const clary_attention_params* params, const clary_packed* q,
                                    const clary_packed* kv);

/* Appends params->k and v ([B, Hkv, n, D]) behind the current lengths of `kv`, whose smoothing vectors stay as they are.
 * Bit-identical to quantizing everything at once with those vectors. Fails, and changes nothing, where a sequence would
 * pass kv_capacity; on a GPU, where that is not seen in time, the sequence takes no token and all that attends to it
 * from then on is NaN. params->kv_lengths, where given, are the new tokens per sequence. */
CLARY_API clary_status clary_append_kv(const clary_attention_params* params, const clary_packed* kv);

/* ---- merge ------------------------------------------------------------------------------------------------------ */

/* Two partial results over disjoint keys, as clary_attention wrote them (ring attention, split KV), on one device. Types
 * fp32, fp16 or bf16 for out, fp32 for lse; dense ([B, H, Lq, Dv] and [B, H, Lq]) or packed ([Tq, H, Dv] and [H, Tq]). */
typedef struct clary_merge_params {
    uint32_t struct_size;      /* sizeof(clary_merge_params) */
    clary_tensor out_a, lse_a; /* updated in place */
    clary_tensor out_b, lse_b;
    clary_context* context;
    void* stream;
} clary_merge_params;

/* out_a = mean of out_a and out_b weighted by exp(lse), lse_a = log of the summed denominators, computed in fp32. -inf on
 * either side (also on both) is exact. With learned sinks, give the sink to one of the partial calls only. */
CLARY_API clary_status clary_merge(const clary_merge_params* params);

/* ---- looking inside --------------------------------------------------------------------------------------------- */

/* A JSON object: the kernel that would run, each other kernel with the reason why not, workspace, bytes moved,
 * expected error. `*json` is valid until the thread's next call into Clary. Answers CLARY_OK also where no kernel
 * takes the problem (then "kernel" is null, and "error" is what a call would say), but CLARY_INVALID_ARGUMENT where the
 * problem itself is wrong. */
CLARY_API clary_status clary_explain(const clary_attention_params* params, const char** json);

typedef struct clary_kernel_info {
    uint32_t struct_size;
    char name[48];    /* e.g. "cpu_avx512_int8_int8" */
    char backend[16]; /* "cpu", "cuda", "maca", "sim", "reference" */
    char arch[16];    /* "avx512", "sm90", ... */
    char recipe[24];  /* "int8_int8" */
    int32_t usable;   /* 1: runs on this machine */
    char reason[160]; /* why it is not usable; "" */
} clary_kernel_info;

CLARY_API int32_t clary_kernel_count(void);
CLARY_API clary_status clary_kernel_get(int32_t index, clary_kernel_info* info);
/* The kernel that this thread's last clary_attention or clary_attend ran, "" before the first. */
CLARY_API const char* clary_last_kernel(void);

#ifdef __cplusplus
}
#endif

#endif /* CLARY_CLARY_H */
