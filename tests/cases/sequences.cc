// SPDX-License-Identifier: Apache-2.0
// Several sequences in one call: packed with cumulative lengths, padded with key lengths, paged.
#include "cases/case.h"

namespace clary::cases {

std::vector<Case> sequence_cases() {
    std::vector<Case> cases;
    const auto varlen = [&](const char* name, std::vector<int64_t> q, std::vector<int64_t> k) -> Case& {
        cases.push_back({.name = name, .topic = "packed sequences (varlen)", .q_heads = 4, .kv_heads = 2, .dim = 32});
        Case& c = cases.back();
        c.batch = static_cast<int64_t>(q.size());
        c.seqlens_q = std::move(q);
        c.seqlens_k = std::move(k);
        return c;
    };
    varlen("varlen", {40, 7, 130}, {40, 7, 130});
    varlen("varlen_causal", {64, 1, 129}, {64, 100, 129}).causal = Causal::kBottomRight;
    varlen("varlen_empty_segments", {0, 20, 5, 0, 33}, {10, 20, 0, 0, 129});
    Case& nhd = varlen("varlen_bf16_strided", {3, 50}, {150, 50});
    nhd.q = nhd.k = nhd.v = nhd.out = DType::kBF16;
    nhd.q_layout = nhd.kv_layout = nhd.out_layout = Layout::kGaps;
    nhd.lengths_int64 = true;
    Case& window = varlen("varlen_window_sinks", {100, 30}, {100, 90});
    window.causal = Causal::kTopLeft;
    window.window = {.enabled = true, .left = 20, .right = -1, .keep = 2};
    window.sinks = true;
    window.give_max_seqlen = true;
    Case& alibi = varlen("varlen_alibi_offsets", {16, 17, 18}, {70, 64, 65});
    alibi.alibi = true;
    alibi.causal = Causal::kOffset;
    alibi.causal_offsets = {10, -3, 64};
    varlen("varlen_nothing", {0, 0}, {0, 0});

    const auto lengths = [&](const char* name, std::vector<int64_t> kv_lengths) -> Case& {
        cases.push_back({.name = name,
                         .topic = "key lengths (padding)",
                         .q_heads = 4,
                         .kv_heads = 2,
                         .q_len = 20,
                         .kv_len = 200,
                         .dim = 32});
        Case& c = cases.back();
        c.batch = static_cast<int64_t>(kv_lengths.size());
        c.kv_lengths = std::move(kv_lengths);
        return c;
    };
    lengths("lengths", {200, 1, 0, 77, 128, 129});
    Case& causal = lengths("lengths_causal", {200, 5, 0, 128});
    causal.causal = Causal::kBottomRight;
    causal.lengths_int64 = true;
    lengths("lengths_masked", {64, 199}).mask = MaskForm::kF32;

    const auto paged = [&](const char* name, int64_t page_size, std::vector<int64_t> kv_lengths) -> Case& {
        Case& c = lengths(name, std::move(kv_lengths));
        c.topic = "paged K and V";
        c.page_size = page_size;
        return c;
    };
    paged("paged", 16, {200, 3, 0, 130});
    paged("paged_odd_pages", 7, {100, 50}).causal = Causal::kBottomRight;
    Case& decode = paged("paged_decode", 64, {1, 150, 200});
    decode.q_len = 1;
    decode.kv_layout = Layout::kNhd;
    decode.k = decode.v = DType::kF16;
    paged("paged_one_key_pages", 1, {9, 20}).kv_len = 20;
    return cases;
}

}  // namespace clary::cases
