// SPDX-License-Identifier: Apache-2.0
// The C ABI with errors as exceptions and owners for what it hands out. Commands reach the library through this only.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "clary/clary.h"
#include "io/tensor_file.h"
#include "problem.h"

namespace clary::cli {

using Json = nlohmann::ordered_json;

void print_json(const Json& json);  // on standard output; bytes that are no UTF-8 (file names) become U+FFFD

// Throws Failure with Clary's own text; `what` (e.g. a layer) is put in front where it is not empty.
void require_ok(clary_status status, const std::string& what = "");

class Context {
  public:
    explicit Context(int32_t threads) { require_ok(clary_context_create(threads, &context_)); }
    ~Context() { clary_context_destroy(context_); }
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;
    clary_context* get() const { return context_; }
    int32_t threads() const { return clary_context_threads(context_); }

  private:
    clary_context* context_ = nullptr;
};

std::vector<clary_kernel_info> all_kernels();

// What clary_explain says; "kernel" is null where no kernel of that backend takes the problem.
Json explain(clary_attention_params params, const std::string& recipe, const std::string& backend);

// One problem bound to a recipe, a backend and buffers of its own, ready to run again and again.
// Every run fails through exceptions. Not copyable: the parameters point into the object.
class Attention {
  public:
    // `out_dtype` and the problem's layout say how the output lies in memory. The problem must outlive this object.
    Attention(const Problem& problem, std::string recipe, std::string backend, clary_context* context,
              DType out_dtype = DType::kF32, bool want_lse = false);
    Attention(const Attention&) = delete;
    Attention& operator=(const Attention&) = delete;

    // For what a Problem does not hold (window, sinks, offsets); before the first run.
    clary_attention_params& params() { return params_; }

    void run();       // the whole call: quantizes, attends
    void quantize();  // first phase alone, into packed buffers
    void attend();    // second phase alone; after quantize()

    const std::string& kernel() const { return kernel_; }  // what the last run or attend ran
    const io::Tensor& out() const { return out_; }         // in the problem's layout
    const io::Tensor& lse() const { return lse_; }         // fp32 [B, H, Lq]
    io::Tensor take_out() { return std::move(out_); }
    io::Tensor take_lse() { return std::move(lse_); }

    // Valid after quantize().
    const clary_packed_layout& q_layout() const { return q_layout_; }
    const clary_packed_layout& kv_layout() const { return kv_layout_; }
    const io::Bytes& packed_q() const { return packed_q_; }
    const io::Bytes& packed_kv() const { return packed_kv_; }

  private:
    void give_workspace();
    static clary_packed packed(io::Bytes& bytes);

    std::string layer_, recipe_, backend_, kernel_;
    clary_attention_params params_;
    io::Tensor out_, lse_;
    io::Bytes workspace_, packed_q_, packed_kv_;
    clary_packed_layout q_layout_{}, kv_layout_{};
};

// The output of exact attention in float64 (rounded to fp32), in the problem's layout.
io::Tensor exact_output(const Problem& problem);

}  // namespace clary::cli
