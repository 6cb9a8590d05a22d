// SPDX-License-Identifier: Apache-2.0
// The project's one list of attention problems, as data. Tests run every kernel on all of them, the fuzzer starts from
// them, and the support table (docs/support.md) asks every kernel about them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/desc.h"

namespace clary::cases {

// How a tensor lies in memory; the logical order stays [batch, heads, tokens, dim].
enum class Layout {
    kHnd,             // [B, H, L, D], dense
    kNhd,             // [B, L, H, D], dense
    kFused,           // [B, L, 3 H', D]: a slice of a fused projection's output, other heads between the tokens
    kGaps,            // [B, H, L, D] with unused elements behind every token and every head, at an odd storage offset
    kEverySecond,     // stride 2 along the last dim
    kTransposed,      // [B, H, D, L] in memory: the last dim has the largest stride of a head
    kBroadcastBatch,  // K and V: stride 0 along the batch
    kBroadcastHeads,  // K and V: stride 0 along the heads
    kReversed,        // tokens lie backwards: a negative stride
};

enum class MaskForm { kNone, kBoolean, kF32, kF16, kBF16 };

enum class Values {
    kNormal,  // N(0, 1)
    kZeroQ,
    kZeroK,
    kZeroV,
    kConstantV,    // every element of V is 1100
    kZeroChannel,  // channel 3 of V and K is zero
    kLoudToken,    // one token of Q, K and V a hundred times as loud
    kHugeV,        // single elements of V at 1e5, beyond fp16
    kTinyAll,      // Q and K times 1e-20, V times 1e-3
    kLargeK,       // K times 1e4: one-hot rows
    kChannelBias,  // four channels of K and Q shifted by 20
    kAlternating,  // one channel of K is +-50, its sign alternates with the token
    kEqualK,       // all keys are the same
    kSink,         // the first key draws most of the weight and its V is small
};

struct Case {
    std::string name;
    const char* topic = "";

    int64_t batch = 1, q_heads = 1, kv_heads = 1, q_len = 64, kv_len = 64, dim = 64;
    int64_t dim_v = 0;  // 0: dim
    DType q = DType::kF32, k = DType::kF32, v = DType::kF32, out = DType::kF32;
    Layout q_layout = Layout::kHnd, kv_layout = Layout::kHnd, out_layout = Layout::kHnd;
    Values values = Values::kNormal;
    bool lse = true;

    bool has_scale = false;
    double scale = 0;

    Causal causal = Causal::kNone;
    int64_t causal_offset = 0;
    std::vector<int64_t> causal_offsets = {};  // per sequence
    Window window = {};

    MaskForm mask = MaskForm::kNone;
    bool mask_axes[4] = {true, true, true, true};  // false: the mask has extent 1 there (batch, head, query, key)
    int mask_rank = 4;                             // leading axes of extent 1 may be dropped
    bool mask_stride_zero = false;                 // broadcast by stride 0 instead of extent 1
    bool mask_empty_rows = true;                   // some rows see no key
    bool mask_all = false;                         // no row sees any

    std::vector<int64_t> kv_lengths = {};  // per sequence
    bool lengths_int64 = false;
    bool alibi = false, sinks = false;
    std::vector<int64_t> seqlens_q = {}, seqlens_k = {};  // varlen: lengths of the packed sequences
    bool give_max_seqlen = false;
    int64_t page_size = 0;

    // How much larger the error of 8-bit scores comes out than for N(0, 1) values at the default scale, because scores
    // spread more: the ratio of the scores' standard deviations. 0: relative error says nothing here (all-equal output,
    // cancellation), the test looks at something else.
    double score_gain = 1;
    // Largest scores in base 2, over the 16 of N(0, 1): what fp32 loses of a score grows with it.
    double score_size = 1;
    // Scores that are all equal: P of every key whose V weight is 30, 34, 50, ... is exactly half way between two
    // codes.
    bool tied = false;

    int64_t v_dim() const { return dim_v > 0 ? dim_v : dim; }
    bool varlen() const { return !seqlens_q.empty(); }
};

// By topic; each list lies in a file of its own.
std::vector<Case> length_cases();
std::vector<Case> layout_cases();
std::vector<Case> dim_cases();
std::vector<Case> causal_cases();
std::vector<Case> mask_cases();
std::vector<Case> sequence_cases();
std::vector<Case> value_cases();

std::vector<Case> all_cases();
// Every pair of the lengths around tiles, with and without causal mask: for CLARY_EXHAUSTIVE=1.
std::vector<Case> exhaustive_length_cases();
// The case at a head dim that all kernels have, or at another, unless its own is wider or what it is about.
Case widened(Case c, int64_t dim = 64);
bool exhaustive();  // CLARY_EXHAUSTIVE=1

}  // namespace clary::cases
