// SPDX-License-Identifier: Apache-2.0
// Which keys a query sees, against the definition in clary.h applied to one pair at a time.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/desc.h"

namespace clary {
namespace {

bool visible(const AttentionDesc& desc, int64_t kv_len, int64_t position, int64_t j) {
    if (j < 0 || j >= kv_len) return false;
    if (desc.causal != Causal::kNone && j > position) return false;
    if (!desc.window.enabled || j < desc.window.keep) return true;
    if (desc.window.left >= 0 && j < position - desc.window.left) return false;
    return desc.window.right < 0 || j <= position + desc.window.right;
}

TEST(KeyRange, BruteForce) {
    AttentionDesc desc;
    int64_t checked = 0;
    for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight, Causal::kOffset})
        for (const int64_t q_len : {1, 3, 7})
            for (const int64_t kv_len : {0, 1, 5, 8})
                for (const int64_t offset : {-9, -2, 0, 4, 20})
                    for (const int64_t left : {-1, 0, 2, 50})
                        for (const int64_t right : {-1, 0, 1, 50})
                            for (const int64_t keep : {0, 1, 3, 50})
                                for (const bool window : {false, true}) {
                                    desc.causal = causal;
                                    desc.causal_offset = causal == Causal::kOffset ? offset : 0;
                                    desc.q_len = q_len;
                                    desc.kv_len = kv_len;
                                    desc.window = {.enabled = window, .left = left, .right = right, .keep = keep};
                                    const Sequence s = sequence_of(desc, 0);
                                    const int64_t shift = causal == Causal::kTopLeft  ? 0
                                                          : causal == Causal::kOffset ? offset
                                                                                      : kv_len - q_len;
                                    ASSERT_EQ(s.offset, shift);
                                    for (int64_t i = 0; i < q_len; ++i) {
                                        const KeyRange range = key_range(desc, s, i + s.offset);
                                        bool any = false;
                                        for (int64_t j = -2; j < kv_len + 3; ++j) {
                                            const bool expected = visible(desc, kv_len, i + shift, j);
                                            any |= expected;
                                            if (j >= 0) {
                                                ASSERT_EQ(range.contains(j), expected) << "i " << i << " j " << j;
                                            }
                                            ++checked;
                                        }
                                        ASSERT_EQ(range.empty(), !any);
                                        ASSERT_LE(range.end, kv_len);
                                        ASSERT_LE(range.keep_end, kv_len);
                                        ASSERT_GE(range.begin, 0);
                                    }
                                }
    EXPECT_GT(checked, 100000);
}

TEST(KeyRange, LengthsOfEachSequence) {
    AttentionDesc desc;
    int32_t cu_q[] = {0, 3, 3, 10}, cu_k[] = {0, 0, 7, 12};
    const auto view = [](void* data, DType dtype, int64_t count) {
        TensorView t;
        t.data = data;
        t.dtype = dtype;
        t.ndim = 1;
        t.shape[0] = count;
        t.stride[0] = 1;
        return t;
    };
    desc.batch = 3;
    desc.causal = Causal::kBottomRight;
    desc.cu_seqlens_q = view(cu_q, DType::kI32, 4);
    desc.cu_seqlens_k = view(cu_k, DType::kI32, 4);
    const Sequence last = sequence_of(desc, 2);
    EXPECT_EQ(last.q_begin, 3);
    EXPECT_EQ(last.q_len, 7);
    EXPECT_EQ(last.kv_begin, 7);
    EXPECT_EQ(last.kv_len, 5);
    EXPECT_EQ(last.offset, -2);
    EXPECT_EQ(sequence_of(desc, 1).q_len, 0);
    EXPECT_EQ(sequence_of(desc, 0).kv_len, 0);

    AttentionDesc padded;
    int64_t lengths[] = {4, 0};
    padded.batch = 2;
    padded.q_len = 3;
    padded.kv_len = 9;
    padded.kv_lengths = view(lengths, DType::kI64, 2);
    EXPECT_EQ(sequence_of(padded, 0).kv_len, 4);
    EXPECT_EQ(sequence_of(padded, 0).offset, 1);
    EXPECT_EQ(sequence_of(padded, 1).kv_len, 0);
    EXPECT_EQ(sequence_of(padded, 0, 8).kv_len, 8);  // a cache knows its own length
}

}  // namespace
}  // namespace clary
