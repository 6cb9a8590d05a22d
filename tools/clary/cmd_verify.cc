// SPDX-License-Identifier: Apache-2.0
// clary verify: does every kernel that this machine can run compute what its recipe promises? Each is compared with the
// recipe's oracle and with attention in float64, on cases that between them meet every path of a kernel.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>

#include "api.h"
#include "commands.h"
#include "failure.h"
#include "metrics.h"
#include "numerics/formats.h"
#include "options.h"
#include "progress.h"
#include "table.h"

namespace clary::cli {
namespace {

struct Options {
    OutputOptions output;
    RunOptions run;
};

// A kernel may err 5 % more than its oracle, which rounds at other places; the exact fp32 path has an oracle without
// error, so it gets the rounding of fp32 sums of some hundred terms instead.
constexpr double kErrorFactor = 1.05;
constexpr double kErrorFloor = 2e-6;
// Against the oracle, natural log. From the same codes the two differ by 1e-6 (tests/cases/tolerances.h); here each
// quantizes on its own, and codes that lie near a tie may differ by one.
constexpr double kLseTolerance = 1e-3;

struct Case {
    std::string name;
    Problem problem;
    std::function<void(clary_attention_params*)> extra = [](clary_attention_params*) {};
};

void round_to_bf16(Problem* problem) {
    for (io::Tensor* tensor : {&problem->q, &problem->k, &problem->v}) {
        io::Tensor rounded;
        require_ok(io::make_tensor(tensor->name, DType::kBF16, tensor->shape, &rounded));
        const auto from = tensor->as<float>();
        const auto to = rounded.as<uint16_t>();
        for (size_t i = 0; i < from.size(); ++i) to[i] = numerics::Bf16::from_float(from[i]).bits;
        *tensor = std::move(rounded);
    }
}

// Every third key hidden, and the whole of row 5.
void add_boolean_mask(Problem* problem) {
    const Shape& s = problem->shape;
    require_ok(io::make_tensor("mask", DType::kBool, {1, 1, s.q_len, s.kv_len}, &problem->mask));
    const auto mask = problem->mask.as<uint8_t>();
    for (int64_t i = 0; i < s.q_len; ++i)
        for (int64_t j = 0; j < s.kv_len; ++j) mask[static_cast<size_t>(i * s.kv_len + j)] = i != 5 && (i + j) % 3 != 0;
    problem->has_mask = true;
}

std::vector<Case> make_cases() {
    std::vector<Case> cases;
    const auto add = [&](const char* name, const Shape& shape, const char* causal) -> Case& {
        cases.push_back({name, synthetic_problem("normal", shape, causal, cases.size() + 1)});
        return cases.back();
    };
    add("plain", {1, 4, 2, 300, 300, 64, 64}, "false");
    add("causal, odd head dims", {2, 2, 1, 65, 333, 80, 72}, "bottom_right");
    add("decode", {2, 8, 1, 1, 700, 128, 128}, "false");
    round_to_bf16(&add("bf16", {1, 3, 3, 130, 257, 128, 128}, "top_left").problem);
    add_boolean_mask(&add("mask, empty row", {1, 2, 2, 100, 190, 64, 64}, "false").problem);
    add("window", {1, 2, 1, 200, 200, 64, 64}, "top_left").extra = [](clary_attention_params* params) {
        params->has_window = 1;
        params->window_left = 50;
        params->window_right = -1;
        params->window_keep = 4;
    };
    return cases;
}

struct Run {
    io::Tensor out, lse;
};

Run run_case(const Case& test, const std::string& recipe, const std::string& backend, clary_context* context,
             std::string* kernel = nullptr, bool want_lse = true) {
    Attention attention(test.problem, recipe, backend, context, DType::kF32, want_lse);
    test.extra(&attention.params());
    attention.run();
    if (kernel) *kernel = attention.kernel();
    return {attention.take_out(), want_lse ? attention.take_lse() : io::Tensor()};
}

double lse_difference(const io::Tensor& a, const io::Tensor& b) {
    double largest = 0;
    for (size_t i = 0; i < a.as<float>().size(); ++i) {
        const double x = a.as<float>()[i], y = b.as<float>()[i];
        if (x == y) continue;  // also -inf on both sides
        if (!std::isfinite(x - y)) return INFINITY;
        largest = std::max(largest, std::abs(x - y));
    }
    return largest;
}

bool same_bits(const io::Tensor& a, const io::Tensor& b) {
    return a.bytes.size() == b.bytes.size() && std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0;
}

struct Verdict {
    std::string kernel, recipe;
    double error = 0, oracle_error = 0, lse = 0;  // the case with the largest error / allowed
    std::vector<std::string> failures;            // "case: what"
};

class Verifier {
  public:
    explicit Verifier(const Context& context) : context_(context), single_(1) {}

    Verdict check(const clary_kernel_info& kernel, const std::string& recipe) {
        Verdict verdict;
        verdict.kernel = kernel.name;
        verdict.recipe = recipe;
        const std::string backend = *kernel.arch ? fmt::format("{}:{}", kernel.backend, kernel.arch) : kernel.backend;
        double worst_share = -1;
        for (size_t i = 0; i < cases_.size(); ++i) {
            const Case& test = cases_[i];
            const auto failed = [&](const std::string& what) {
                verdict.failures.push_back(fmt::format("{}: {}", test.name, what));
            };
            std::string ran;
            Run result;
            try {
                result = run_case(test, recipe, backend, context_.get(), &ran);
            } catch (const Failure& failure) {
                failed(failure.what());
                continue;
            }
            if (ran != kernel.name) failed(fmt::format("ran {} instead", ran));
            const Oracle& oracle = oracle_for(i, recipe);
            const double error = compare(oracle.exact, result.out, test.problem.layout).relative_l1;
            const double allowed = kErrorFactor * oracle.error + kErrorFloor;
            if (!(error <= allowed)) failed(fmt::format("relative L1 {:.3g}; allowed: {:.3g}", error, allowed));
            const double lse = lse_difference(oracle.run.lse, result.lse);
            if (!(lse <= kLseTolerance))
                failed(fmt::format("LSE differs by {:.3g}; allowed: {:.3g}", lse, kLseTolerance));
            const Run again = run_case(test, recipe, backend, single_.get());
            if (!same_bits(again.out, result.out) || !same_bits(again.lse, result.lse))
                failed("one thread gives other bits");
            check_two_phases(test, recipe, backend, result.out, failed);
            // Another kernel may serve where no LSE is wanted.
            const io::Tensor alone = run_case(test, recipe, backend, context_.get(), nullptr, false).out;
            const double error_alone = compare(oracle.exact, alone, test.problem.layout).relative_l1;
            if (!(error_alone <= allowed))
                failed(fmt::format("without LSE: relative L1 {:.3g}; allowed: {:.3g}", error_alone, allowed));
            verdict.lse = std::max(verdict.lse, lse);
            if (error / allowed > worst_share) {
                worst_share = error / allowed;
                verdict.error = error;
                verdict.oracle_error = oracle.error;
            }
        }
        return verdict;
    }

    size_t case_count() const { return cases_.size(); }

  private:
    struct Oracle {
        io::Tensor exact;
        Run run;
        double error;
    };

    const Oracle& oracle_for(size_t index, const std::string& recipe) {
        const auto [place, is_new] = oracles_.try_emplace({index, recipe});
        if (is_new) {
            const Case& test = cases_[index];
            Oracle& oracle = place->second;
            oracle.exact = run_case(test, "fp32_fp32", "reference", context_.get()).out;
            oracle.run = run_case(test, recipe, "reference", context_.get());
            oracle.error = compare(oracle.exact, oracle.run.out, test.problem.layout).relative_l1;
        }
        return place->second;
    }

    template <typename Failed>
    void check_two_phases(const Case& test, const std::string& recipe, const std::string& backend,
                          const io::Tensor& expected, const Failed& failed) const {
        Attention attention(test.problem, recipe, backend, context_.get(), DType::kF32, true);
        test.extra(&attention.params());
        attention.quantize();
        attention.attend();
        if (!same_bits(attention.out(), expected)) failed("quantize and attend give other bits than one call");
    }

    const Context& context_;
    Context single_;
    std::vector<Case> cases_ = make_cases();
    std::map<std::pair<size_t, std::string>, Oracle> oracles_;
};

std::vector<std::string> recipes_of(const std::string& name) {
    if (name == "fp32_fp32" || name == "fp16_fp16" || name == "bf16_bf16") return {name};
    return {name + ":accurate", name + ":fast"};
}

int work(const Options& options) {
    const Context context(options.run.threads);
    std::vector<clary_kernel_info> kernels;
    for (const clary_kernel_info& kernel : all_kernels()) {
        const bool asked = options.run.backend == "auto" || options.run.backend == kernel.backend ||
                           options.run.backend == fmt::format("{}:{}", kernel.backend, kernel.arch);
        // The tool's tensors lie in CPU memory.
        if (asked && kernel.usable && std::string_view(kernel.backend) == "cpu") kernels.push_back(kernel);
    }
    if (kernels.empty())
        fail("--backend {}: has no kernel that this machine can run; allowed: auto, or one that clary env lists",
             options.run.backend);
    Verifier verifier(context);
    std::vector<Verdict> verdicts;
    {
        Progress progress(static_cast<int64_t>(kernels.size()), options.output.quiet);
        for (const clary_kernel_info& kernel : kernels) {
            progress.step(kernel.name);
            for (const std::string& recipe : recipes_of(kernel.recipe))
                verdicts.push_back(verifier.check(kernel, recipe));
        }
    }
    Json json = Json::array();
    Table table({"kernel", "recipe", "rel L1>", "oracle's>", "LSE diff>", "verdict"});
    size_t failed = 0;
    for (const Verdict& v : verdicts) {
        const bool pass = v.failures.empty();
        failed += !pass;
        json.push_back({{"kernel", v.kernel},
                        {"recipe", v.recipe},
                        {"rel_l1", v.error},
                        {"oracle_rel_l1", v.oracle_error},
                        {"lse_difference", v.lse},
                        {"pass", pass},
                        {"failures", v.failures}});
        table.add({v.kernel, v.recipe, fmt::format("{:.3g}", v.error), fmt::format("{:.3g}", v.oracle_error),
                   fmt::format("{:.1g}", v.lse), pass ? "PASS" : "FAIL"});
    }
    if (options.output.json) {
        print_json(json);
    } else {
        fmt::print("{}", table.text());
        for (const Verdict& v : verdicts)
            for (const std::string& text : v.failures) fmt::print("FAIL {} {}: {}\n", v.kernel, v.recipe, text);
        fmt::print(
            "\n{} of {} passed, each on {} cases: against its oracle and float64, on one thread and all, in one "
            "call and two phases\n",
            verdicts.size() - failed, verdicts.size(), verifier.case_count());
    }
    return failed == 0 ? kExitOk : kExitCheckFailed;
}

}  // namespace

void add_verify(CLI::App* app, int* exit_code) {
    CLI::App* command = app->add_subcommand("verify", "Self-test of every kernel that this machine can run");
    const auto options = std::make_shared<Options>();
    add_backend_option(command, &options->run);
    add_threads_option(command, &options->run);
    add_output_options(command, &options->output);
    command->footer(
        "Exit code 1 where a kernel fails.\nExamples:\n  clary verify\n  clary verify --backend cpu:avx2 --json");
    set_action(command, exit_code, options, work);
}

}  // namespace clary::cli
