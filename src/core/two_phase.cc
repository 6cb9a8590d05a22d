// SPDX-License-Identifier: Apache-2.0
#include "core/two_phase.h"

#include <fmt/format.h>

namespace clary {
namespace {

bool on_host(const AttentionDesc& desc) { return desc.device == DeviceType::kCpu; }

Status check_memory(const AttentionDesc& desc, const PackedBuffer& buffer, const PackedLayout& layout) {
    if (buffer.device != desc.device || buffer.device_index != desc.device_index)
        return invalid_argument(fmt::format("{}: on device {}:{}, but q is on {}:{}", buffer.name,
                                            static_cast<int>(buffer.device), buffer.device_index,
                                            static_cast<int>(desc.device), desc.device_index));
    if (reinterpret_cast<uintptr_t>(buffer.data) % 64 != 0)
        return invalid_argument(fmt::format("{}: not aligned; allowed: a multiple of 64 bytes", buffer.name));
    if (buffer.bytes < static_cast<size_t>(layout.bytes))
        return invalid_argument(fmt::format("{}: {} bytes; allowed: at least the {} of its layout", buffer.name,
                                            buffer.bytes, layout.bytes));
    return Status::ok();
}

// A packed K and V that is about to be read: memory, header and every length.
Status check_kv(const AttentionDesc& desc, const PackedLayout& layout, int64_t kv_capacity, const PackedBuffer& kv) {
    CLARY_RETURN_IF_ERROR(check_memory(desc, kv, layout));
    if (!on_host(desc)) return Status::ok();
    CLARY_RETURN_IF_ERROR(check_header(kv.name, desc, layout, kv.data));
    const int64_t* const lengths = section<int64_t>(layout, kv.data, "lengths");
    for (int64_t b = 0; b < desc.batch; ++b) {
        const int64_t top = desc.varlen() ? sequence_of(desc, b).kv_len : kv_capacity > 0 ? kv_capacity : desc.kv_len;
        if (lengths[b] < 0 || lengths[b] > top || (desc.varlen() && lengths[b] != top))
            return invalid_argument(fmt::format("{}: holds a length of {} for sequence {}; allowed: {}{}", kv.name,
                                                lengths[b], b, desc.varlen() ? "" : "0..", top));
    }
    return Status::ok();
}

// What limits the keys of a sequence from outside must fit the keys that are packed.
Status check_lengths(const AttentionDesc& desc, const PackedLayout& layout, const PackedBuffer& kv) {
    const int64_t* const lengths = section<int64_t>(layout, kv.data, "lengths");
    for (int64_t b = 0; b < desc.batch; ++b) {
        int64_t keys = lengths[b];
        if (desc.kv_lengths.given()) {
            keys = integer_at(desc.kv_lengths, b);
            if (keys > lengths[b])
                return invalid_argument(fmt::format("kv_lengths[{}]: {}; allowed: 0..{}, the keys that {} holds", b,
                                                    keys, lengths[b], kv.name));
        }
        if (desc.mask_kind != MaskKind::kNone && keys > desc.mask.shape[3])
            return invalid_argument(
                fmt::format("mask: {} keys, but {} holds {} of sequence {}; allowed: at least as "
                            "many (give k the shape of all keys)",
                            desc.mask.shape[3], kv.name, keys, b));
    }
    return Status::ok();
}

Status check_shared_scales(const AttentionDesc& desc) {
    if (desc.recipe.granularity == numerics::Granularity::kPerTensor)
        return unsupported(
            "recipe: granularity=per_tensor spans all tokens, so none can be appended; allowed: fine, per_token, "
            "per_thread, per_warp, per_block");
    if (desc.recipe.v_scale != VScale::kChannel) return Status::ok();
    return unsupported(
        "recipe: v_scale=channel spans all tokens, so none can be appended; allowed: token, "
        "channel_tile");
}

}  // namespace

Status quantize(const KernelRow& row, const Call& call, int64_t kv_capacity, const PackedBuffer* q,
                const PackedBuffer* kv, const PackedBuffer* kv_ready) {
    const AttentionDesc& desc = call.desc;
    const PackedLayout q_layout = row.q_layout(desc), kv_layout = row.kv_layout(desc, kv_capacity);
    if (q) CLARY_RETURN_IF_ERROR(check_memory(desc, *q, q_layout));
    if (kv) CLARY_RETURN_IF_ERROR(check_memory(desc, *kv, kv_layout));
    if (kv_ready) CLARY_RETURN_IF_ERROR(check_kv(desc, kv_layout, kv_capacity, *kv_ready));
    if (kv && desc.recipe.key_bias() && !desc.q_base.given() && desc.q.data == nullptr && desc.q_tokens > 0)
        return invalid_argument(
            fmt::format("q.data: null; recipe {} takes the base of Q's scales from it; allowed: "
                        "data, or q_base given",
                        recipe_text(desc.recipe)));
    CLARY_RETURN_IF_ERROR(row.quantize(call, kv_capacity, q ? q->data : nullptr, kv ? kv->data : nullptr,
                                       kv_ready ? kv_ready->data : nullptr));
    if (!on_host(desc)) return Status::ok();
    const uint64_t vectors = vectors_id(kv_layout, kv ? kv->data : kv_ready->data);
    if (kv) write_header(desc, kv_layout, kv->data, vectors);
    if (q) write_header(desc, q_layout, q->data, vectors);
    return Status::ok();
}

Status attend(const KernelRow& row, const Call& call, int64_t kv_capacity, const PackedBuffer& q,
              const PackedBuffer& kv) {
    const AttentionDesc& desc = call.desc;
    const PackedLayout q_layout = row.q_layout(desc), kv_layout = row.kv_layout(desc, kv_capacity);
    CLARY_RETURN_IF_ERROR(check_memory(desc, q, q_layout));
    if (on_host(desc)) CLARY_RETURN_IF_ERROR(check_header(q.name, desc, q_layout, q.data));
    CLARY_RETURN_IF_ERROR(check_kv(desc, kv_layout, kv_capacity, kv));
    if (!on_host(desc)) return row.attend(call, kv_capacity, q.data, kv.data);
    if (header_of(q_layout, q.data).vectors != vectors_id(kv_layout, kv.data))
        return invalid_argument(
            fmt::format("{}: was packed for another K and V (c_k, c_q and q_base differ); allowed: "
                        "what clary_quantize wrote against this {}",
                        q.name, kv.name));
    CLARY_RETURN_IF_ERROR(check_lengths(desc, kv_layout, kv));
    return row.attend(call, kv_capacity, q.data, kv.data);
}

Status append(const KernelRow& row, const Call& call, int64_t kv_capacity, const PackedBuffer& kv) {
    const AttentionDesc& desc = call.desc;
    CLARY_RETURN_IF_ERROR(check_shared_scales(desc));
    const PackedLayout layout = row.kv_layout(desc, kv_capacity);
    if (row.append == nullptr)
        return unsupported(fmt::format("kv: {} cannot append to a cache; allowed: quantize all keys anew", row.name));
    CLARY_RETURN_IF_ERROR(check_kv(desc, layout, kv_capacity, kv));
    if (!on_host(desc)) return row.append(call, kv_capacity, kv.data);
    const int64_t* const lengths = section<int64_t>(layout, kv.data, "lengths");
    for (int64_t b = 0; b < desc.batch; ++b) {
        const int64_t added = sequence_of(desc, b).kv_len;
        if (lengths[b] + added > kv_capacity)
            return invalid_argument(
                fmt::format("k: {} tokens behind the {} of sequence {} pass the capacity; allowed: "
                            "{} more",
                            added, lengths[b], b, kv_capacity - lengths[b]));
    }
    return row.append(call, kv_capacity, kv.data);
}

}  // namespace clary
