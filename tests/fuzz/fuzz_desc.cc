// SPDX-License-Identifier: Apache-2.0
// clary_attention_params made from bytes. Two ways: wild numbers in every field without any data, for the calls that
// look at shapes only; and a small case that is right, with every feature that a bit can switch on, run to the end by
// every kernel of the CPU. Memory around all tensors is guarded (cases/problem.h).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cases/problem.h"
#include "clary/clary.h"
#include "core/packed.h"

namespace {

using namespace clary;
using namespace clary::cases;

// Numbers from the input; zeros once it is used up.
class Bytes {
  public:
    Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}

    uint8_t byte() { return size_ == 0 ? 0 : (--size_, *data_++); }
    bool flag() { return (byte() & 1) != 0; }
    template <typename T>
    T pick(std::initializer_list<T> from) {
        return from.begin()[byte() % from.size()];
    }
    // Small, or next to a limit, or anything.
    int64_t wild() {
        const uint8_t kind = byte();
        if (kind < 160) return kind % 20 - 2;
        if (kind < 200) return (int64_t{1} << (byte() % 63)) + byte() % 3 - 1;
        if (kind < 210) return INT64_MAX - byte() % 2;
        if (kind < 220) return INT64_MIN + byte() % 2;
        uint64_t value = 0;
        for (int i = 0; i < 8; ++i) value = value << 8 | byte();
        return static_cast<int64_t>(value);
    }

  private:
    const uint8_t* data_;
    size_t size_;
};

[[noreturn]] void fail(const char* what, const std::string& detail) {
    std::fprintf(stderr, "%s: %s\n", what, detail.c_str());
    std::abort();
}

void check_status(clary_status status) {
    if (status == CLARY_OK) return;
    const std::string text = clary_last_error();
    if (status == CLARY_INTERNAL || text.empty() || text.find('\n') != std::string::npos)
        fail(clary_status_string(status), text);
}

constexpr const char* kRecipes[] = {"int8_int8",
                                    "int8_int8:fast",
                                    "int8_int8+tile=64+v_scale=channel_tile+smooth_v",
                                    "int8_int8+granularity=per_block+no_smooth_k+no_rotate",
                                    "int8_fp16",
                                    "int8_fp16:sage2",
                                    "int8_bf16+smooth_v+rotate_v",
                                    "fp32_fp32",
                                    "auto",
                                    "int8_fp8",
                                    "int8_int8:sage2",
                                    "int4_fp4",
                                    ""};
const char* recipe_of(Bytes* in) { return kRecipes[in->byte() % std::size(kRecipes)]; }

void wild_tensor(Bytes* in, clary_tensor* t, int usual_rank, int32_t usual_dtype) {
    t->ndim = in->byte() % 8 == 0 ? static_cast<int32_t>(in->wild()) : usual_rank;
    t->dtype = in->byte() % 8 == 0 ? in->byte() : usual_dtype;
    if (in->byte() % 16 == 0) t->device = in->byte() % 5 - 1;
    for (int64_t& extent : t->shape) extent = in->wild();
    for (int64_t& stride : t->stride) stride = in->wild();
}

// Nothing points anywhere, so nothing may be read.
void wild_shapes(Bytes* in) {
    clary_attention_params p{};
    p.struct_size = in->byte() == 0 ? in->byte() : sizeof(p);
    const bool varlen = in->flag();
    const int rank = varlen ? 3 : 4;
    const int32_t dtype = 1 + in->byte() % 3;
    wild_tensor(in, &p.q, rank, dtype);
    p.k = p.v = p.out = p.q;  // usually fitting each other
    if (in->flag()) wild_tensor(in, &p.k, rank, dtype);
    if (in->flag()) wild_tensor(in, &p.v, rank, dtype);
    if (in->flag()) wild_tensor(in, &p.out, rank, dtype);
    if (in->flag()) wild_tensor(in, &p.lse, rank - 1, CLARY_FP32);
    if (in->flag()) wild_tensor(in, &p.mask, 1 + in->byte() % 4, in->pick({10, 1, 2, 3}));
    if (in->flag()) wild_tensor(in, &p.kv_lengths, 1, CLARY_INT32);
    if (in->flag()) wild_tensor(in, &p.alibi_slopes, 1, CLARY_FP32);
    if (in->flag()) wild_tensor(in, &p.sinks, 1, CLARY_FP32);
    if (in->flag()) wild_tensor(in, &p.block_table, 2, CLARY_INT32);
    if (in->flag()) wild_tensor(in, &p.causal_offsets, 1, CLARY_INT64);
    if (in->flag()) wild_tensor(in, &p.c_k, 3, CLARY_FP32);
    if (in->flag()) wild_tensor(in, &p.c_q, 3, CLARY_FP32);
    if (in->flag()) wild_tensor(in, &p.q_base, 2, CLARY_FP32);
    if (varlen) {
        wild_tensor(in, &p.cu_seqlens_q, 1, CLARY_INT32);
        p.cu_seqlens_k = p.cu_seqlens_q;
        p.max_seqlen_q = in->wild();
        p.max_seqlen_k = in->wild();
    }
    p.recipe = recipe_of(in);
    p.backend = in->pick({"auto", "cpu", "cpu:generic", "cpu:avx2", "reference", "cuda:sm90", "cpu:", ":", "x"});
    p.has_scale = in->flag();
    const int64_t bits = in->wild();
    if (in->flag()) std::memcpy(&p.scale, &bits, sizeof(p.scale));
    p.causal = in->byte() % 6 - 1;
    if (in->flag()) p.causal_offset = in->wild();
    p.has_window = in->flag();
    if (in->flag()) {
        p.window_left = in->wild();
        p.window_right = in->wild();
        p.window_keep = in->wild();
    }
    const char* json = nullptr;
    size_t bytes = 0;
    clary_packed_layout q{}, kv{};
    q.struct_size = kv.struct_size = sizeof(q);
    check_status(clary_explain(&p, &json));
    check_status(clary_workspace_size(&p, in->flag(), &bytes));
    const clary_status status = clary_packed_layouts(&p, in->flag() ? in->wild() : 0, &q, &kv);
    check_status(status);
    if (status != CLARY_OK) return;
    for (const clary_packed_layout* layout : {&q, &kv}) {
        if (layout->bytes < 0 || layout->section_count > CLARY_MAX_SECTIONS) fail("layout", "negative or too many");
        for (int32_t i = 0; i < layout->section_count; ++i)
            if (layout->sections[i].offset < 0 || layout->sections[i].offset > layout->bytes)
                fail("layout", layout->sections[i].name);
    }
}

Case small_case(Bytes* in) {
    Case c{.name = "fuzz"};
    const auto type = [&] { return in->pick({DType::kF32, DType::kF16, DType::kBF16}); };
    c.batch = in->byte() % 4;
    c.kv_heads = 1 + in->byte() % 3;
    c.q_heads = c.kv_heads * (1 + in->byte() % 4);
    c.q_len = in->byte() % 80;
    c.kv_len = in->byte() % 3 == 0 ? in->byte() : in->byte() % 70;
    c.dim = 1 + in->byte() % 48;
    c.dim_v = in->flag() ? 1 + in->byte() % 48 : 0;
    c.q = type();
    c.k = type();
    c.v = type();
    c.out = type();
    const auto layout = [&] {
        return in->pick({Layout::kHnd, Layout::kNhd, Layout::kFused, Layout::kGaps, Layout::kEverySecond,
                         Layout::kTransposed, Layout::kReversed});
    };
    c.q_layout = layout();
    c.kv_layout = layout();
    c.out_layout = layout();
    c.values = static_cast<Values>(in->byte() % 14);
    c.lse = in->flag();
    c.has_scale = in->flag();
    if (c.has_scale) c.scale = in->pick({0.0, -0.3, 1.0, 1e-20, 30.0, -1e30, 1e30});
    c.causal = static_cast<Causal>(in->byte() % 4);
    if (c.causal == Causal::kOffset) c.causal_offset = in->byte() - 128;
    if (in->flag()) c.window = {true, in->byte() % 40 - 1, in->byte() % 40 - 1, in->byte() % 20};
    c.alibi = in->flag();
    c.sinks = in->flag();
    if (in->byte() % 4 == 0) {
        for (int64_t b = 0; b < c.batch; ++b) {
            c.seqlens_q.push_back(in->byte() % 50);
            c.seqlens_k.push_back(in->byte() % 150);
        }
        c.give_max_seqlen = in->flag() && c.batch > 0;
    } else {
        c.mask = static_cast<MaskForm>(in->byte() % 5);
        for (bool& axis : c.mask_axes) axis = in->flag();
        c.mask_stride_zero = in->flag();
        c.mask_all = in->byte() % 8 == 0;
        if (in->flag())
            for (int64_t b = 0; b < c.batch; ++b) c.kv_lengths.push_back(in->byte() % (c.kv_len + 1));
        if (!c.kv_lengths.empty() && in->flag()) c.page_size = 1 + in->byte() % 20;
    }
    c.lengths_int64 = in->flag();
    if (c.causal == Causal::kOffset && in->flag())
        for (int64_t b = 0; b < c.batch; ++b) c.causal_offsets.push_back(in->byte() - 100);
    return c;
}

std::string describe(const Case& c, const clary_attention_params& p) {
    return fmt::format(
        "{} on {}: batch {} heads {}/{} lengths {}x{} dims {}/{} types {}{}{}{} values {} scale {} ({}) "
        "causal {} window {} mask {} lengths {} varlen {} paged {}",
        p.recipe, p.backend, c.batch, c.q_heads, c.kv_heads, c.q_len, c.kv_len, c.dim, c.v_dim(), p.q.dtype, p.k.dtype,
        p.v.dtype, p.out.dtype, static_cast<int>(c.values), c.has_scale, c.scale, static_cast<int>(c.causal),
        c.window.enabled, static_cast<int>(c.mask), c.kv_lengths.size(), c.varlen(), c.page_size);
}

void small_run(Bytes* in) {
    const Case c = small_case(in);
    Problem problem(c, 1 + in->byte());
    // Now and then a value that is not finite, somewhere in Q, K or V.
    const bool poisoned = in->byte() % 4 == 0;
    if (poisoned && !c.varlen()) {
        const clary_tensor& t = *in->pick({&problem.params.q, &problem.params.k, &problem.params.v});
        if (t.shape[0] > 0 && t.shape[2] > 0) {
            problem.set(
                t, {in->byte() % t.shape[0], in->byte() % t.shape[1], in->byte() % t.shape[2], in->byte() % t.shape[3]},
                in->flag() ? INFINITY : NAN);
            problem.freeze_inputs();
        }
    }
    clary_attention_params p = problem.params;
    p.recipe = recipe_of(in);
    p.backend = in->pick({"cpu", "cpu:avx512", "cpu:avx2", "cpu:generic", "reference"});
    size_t bytes = 0;
    if (clary_workspace_size(&p, 1, &bytes) != CLARY_OK) {
        check_status(clary_workspace_size(&p, 1, &bytes));
        return;
    }
    if (bytes > (size_t{1} << 26)) return;
    Guarded workspace(bytes);
    if (in->flag()) {
        p.workspace = workspace.data();
        p.workspace_size = bytes;
    }
    const clary_status status = clary_attention(&p);
    check_status(status);
    if (status != CLARY_OK) return;
    if (!workspace.canaries_intact()) fail("workspace", c.name);
    if (const std::string damage = problem.damage(); !damage.empty()) fail("damage", damage);
    // A scale of 1e30 overflows scores of real values: NaN is right there.
    const bool wild = c.has_scale && std::fabs(c.scale) > 100;
    const bool overflows = c.values == Values::kHugeV && (c.v == DType::kF16 || c.out == DType::kF16);
    if (!poisoned && !wild && !overflows)
        for (const float x : problem.output().out)
            if (!std::isfinite(x)) fail("output not finite", describe(c, p));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Bytes in(data, size);
    if (in.flag())
        wild_shapes(&in);
    else
        small_run(&in);
    return 0;
}
