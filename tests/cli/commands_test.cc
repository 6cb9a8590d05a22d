// SPDX-License-Identifier: Apache-2.0
// What each command does when all is well.
#include <fmt/format.h>

#include <cmath>
#include <set>

#include "numerics/formats.h"
#include "program.h"

namespace clary::test {
namespace {

class Commands : public Folder {
  protected:
    Outcome run_ok(const std::string& arguments) {
        Outcome outcome = run_clary(arguments);
        EXPECT_EQ(outcome.exit_code, 0) << arguments << "\n" << outcome.err;
        EXPECT_EQ(outcome.err, "") << arguments;
        return outcome;
    }
    void expect_near(const io::Tensor& tensor, const std::vector<double>& expected, double tolerance) {
        const auto values = tensor.as<float>();
        ASSERT_EQ(values.size(), expected.size());
        for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], expected[i], tolerance) << i;
    }
};

TEST_F(Commands, EveryCommandHasHelpWithExamples) {
    for (const char* command : {"env", "explain", "verify", "run", "accuracy", "bench", "quantize", "inspect"}) {
        const Outcome outcome = run_ok(fmt::format("{} --help", command));
        EXPECT_NE(outcome.out.find(fmt::format("  clary {}", command)), std::string::npos) << outcome.out;
        EXPECT_NE(outcome.out.find("--json"), std::string::npos) << outcome.out;
    }
    EXPECT_NE(run_ok("--version").out.find('.'), std::string::npos);
}

TEST_F(Commands, EnvListsKernels) {
    const nlohmann::json json = run_ok("env --json").json();
    EXPECT_FALSE(json.at("cpu").get<std::string>().empty());
    EXPECT_GE(json.at("threads").get<int>(), 1);
    std::set<std::string> names;
    for (const auto& kernel : json.at("kernels"))
        if (kernel.at("usable").get<bool>()) names.insert(kernel.at("name").get<std::string>());
    EXPECT_TRUE(names.count("cpu_generic_int8_int8"));
    EXPECT_TRUE(names.count("reference_fp4_fp4"));
    EXPECT_NE(run_ok("env").out.find("cpu_generic_int8_int8"), std::string::npos);
}

TEST_F(Commands, ExplainNamesKernelAndReasons) {
    const nlohmann::json json =
        run_ok("explain --shape 1,8,2,512,512,64 --recipe int8_int8 --backend cpu:generic --json").json();
    EXPECT_EQ(json.at("kernel"), "cpu_generic_int8_int8");
    EXPECT_EQ(json.at("problem").at("kv_heads"), 2);
    EXPECT_GT(json.at("workspace_bytes").get<int64_t>(), 0);
    const std::string text = run_ok("explain --shape 1,8,2,512,512,64 --recipe int8_fp8").out;
    EXPECT_NE(text.find("none takes this problem"), std::string::npos) << text;
    EXPECT_NE(text.find("runs only when asked for by name"), std::string::npos) << text;
}

TEST_F(Commands, RunComputesAttention) {
    const io::TensorFile capture = small_capture();
    save_file(path("in.safetensors"), capture);
    const std::vector<double> expected = textbook_attention(capture, false, 0, 0.25);
    for (const auto& [options, tolerance] : {std::pair{"--recipe fp32_fp32 --backend reference", 1e-6},
                                             {"--recipe fp32_fp32", 1e-5},
                                             {"", 0.02},
                                             {"--recipe int8_fp16:fast", 0.02}}) {
        run_ok(fmt::format("run {} -o {} {}", path("in.safetensors"), path("out.safetensors"), options));
        const io::TensorFile result = load_file(path("out.safetensors"));
        ASSERT_NE(result.find("out"), nullptr);
        EXPECT_EQ(result.find("out")->shape, (std::vector<int64_t>{1, 4, 20, 16}));
        expect_near(*result.find("out"), expected, tolerance);
        EXPECT_FALSE(result.metadata.at("kernel").empty());
        EXPECT_FALSE(result.metadata.at("recipe").empty());
        EXPECT_EQ(result.find("lse"), nullptr);
    }
}

TEST_F(Commands, RunFollowsMetadataAndOptionsOverrideIt) {
    io::TensorFile capture = small_capture(7, 20);
    capture.metadata = {{"causal", "bottom_right"}, {"scale", "0.5"}, {"layout", "hnd"}};
    save_file(path("in.safetensors"), capture);
    const std::string run =
        fmt::format("run {} -o {} --recipe fp32_fp32 ", path("in.safetensors"), path("out.safetensors"));
    run_ok(run);
    expect_near(*load_file(path("out.safetensors")).find("out"), textbook_attention(capture, true, 13, 0.5), 1e-5);
    run_ok(run + "--causal=top_left --scale 0.125");
    expect_near(*load_file(path("out.safetensors")).find("out"), textbook_attention(capture, true, 0, 0.125), 1e-5);
    run_ok(run + "--causal=false --scale -0.5");
    expect_near(*load_file(path("out.safetensors")).find("out"), textbook_attention(capture, false, 0, -0.5), 1e-5);
}

// The same values with heads and tokens swapped in memory give the same output, swapped likewise.
TEST_F(Commands, RunReadsAndWritesTheLayoutSaid) {
    const io::TensorFile hnd = small_capture();
    io::TensorFile nhd = hnd;
    for (io::Tensor& tensor : nhd.tensors) {
        const io::Tensor original = tensor;
        const int64_t heads = original.shape[1], length = original.shape[2], dim = original.shape[3];
        tensor.shape = {1, length, heads, dim};
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t t = 0; t < length; ++t)
                for (int64_t d = 0; d < dim; ++d)
                    tensor.as<float>()[static_cast<size_t>((t * heads + h) * dim + d)] =
                        original.as<float>()[static_cast<size_t>((h * length + t) * dim + d)];
    }
    save_file(path("hnd.npz"), hnd);
    save_file(path("nhd.npz"), nhd);
    run_ok(fmt::format("run {} -o {} --causal", path("hnd.npz"), path("a.npz")));
    run_ok(fmt::format("run {} -o {} --causal --layout nhd", path("nhd.npz"), path("b.npz")));
    const io::TensorFile a = load_file(path("a.npz")), b = load_file(path("b.npz"));
    ASSERT_EQ(b.find("out")->shape, (std::vector<int64_t>{1, 20, 4, 16}));
    for (size_t h = 0; h < 4; ++h)
        for (size_t t = 0; t < 20; ++t)
            for (size_t d = 0; d < 16; ++d)
                ASSERT_EQ(a.find("out")->as<float>()[(h * 20 + t) * 16 + d],
                          b.find("out")->as<float>()[(t * 4 + h) * 16 + d]);
}

TEST_F(Commands, RunServesLayersMasksAndMissingBatch) {
    io::TensorFile capture = small_capture(20, 20, "layer.03");
    const io::TensorFile other = small_capture(6, 6, "layer.10");
    capture.tensors.insert(capture.tensors.end(), other.tensors.begin(), other.tensors.end());
    for (io::Tensor& tensor : capture.tensors) tensor.shape.erase(tensor.shape.begin());
    io::Tensor mask;
    ASSERT_TRUE(io::make_tensor("layer.10.mask", DType::kBool, {6, 6}, &mask).is_ok());
    for (size_t i = 0; i < 36; ++i) mask.as<uint8_t>()[i] = i % 6 <= i / 6;
    capture.tensors.push_back(mask);
    save_file(path("in.safetensors"), capture);
    run_ok(fmt::format("run {} -o {} --lse --recipe fp32_fp32", path("in.safetensors"), path("out.safetensors")));
    const io::TensorFile result = load_file(path("out.safetensors"));
    EXPECT_EQ(result.tensors.size(), 4u);
    EXPECT_EQ(result.find("layer.03.out")->shape, (std::vector<int64_t>{4, 20, 16}));
    EXPECT_EQ(result.find("layer.10.lse")->shape, (std::vector<int64_t>{4, 6}));
    // The mask is the causal one.
    expect_near(*result.find("layer.10.out"), textbook_attention(small_capture(6, 6), true, 0, 0.25), 1e-5);
    run_ok(fmt::format("run {} -o {} --layer layer.10", path("in.safetensors"), path("one.safetensors")));
    EXPECT_EQ(load_file(path("one.safetensors")).tensors.size(), 1u);
}

TEST_F(Commands, RunKeepsTheTypeOfQ) {
    io::TensorFile capture = small_capture();
    for (io::Tensor& tensor : capture.tensors) {
        const io::Tensor original = tensor;
        ASSERT_TRUE(io::make_tensor(original.name, DType::kBF16, original.shape, &tensor).is_ok());
        for (size_t i = 0; i < original.as<float>().size(); ++i)
            tensor.as<uint16_t>()[i] = numerics::Bf16::from_float(original.as<float>()[i]).bits;
    }
    save_file(path("in.safetensors"), capture);
    run_ok(fmt::format("run {} -o {}", path("in.safetensors"), path("out.safetensors")));
    EXPECT_EQ(load_file(path("out.safetensors")).find("out")->dtype, DType::kBF16);
    run_ok(fmt::format("run {} -o {}", path("in.safetensors"), path("out.npz")));
    EXPECT_EQ(load_file(path("out.npz")).find("out")->dtype, DType::kF32) << "numpy has no bf16";
}

TEST_F(Commands, RunPrintsJson) {
    save_file(path("in.safetensors"), small_capture());
    const nlohmann::json json = run_ok(fmt::format("run {} -o {} --json --recipe int8_int8:fast",
                                                   path("in.safetensors"), path("out.safetensors")))
                                    .json();
    EXPECT_EQ(json.at("layers").size(), 1u);
    EXPECT_EQ(json.at("layers")[0].at("recipe"), "int8_int8:fast");
    EXPECT_EQ(run_ok(fmt::format("run {} -o {} -q", path("in.safetensors"), path("out.safetensors"))).out, "");
}

TEST_F(Commands, AccuracyMeasuresEveryRecipe) {
    save_file(path("in.safetensors"), small_capture(130, 130));
    const std::string page = path("page.html");
    const nlohmann::json json =
        run_ok(fmt::format("accuracy {} --causal --repeat 1 --html {} --json", path("in.safetensors"), page)).json();
    std::set<std::string> recipes;
    for (const auto& recipe : json.at("recipes")) {
        recipes.insert(recipe.at("recipe").get<std::string>());
        EXPECT_EQ(recipe.at("layers").size(), 1u);
        EXPECT_EQ(recipe.at("layers")[0].at("heads").size(), 4u);
        EXPECT_EQ(recipe.at("ms").is_null(), recipe.at("emulated").get<bool>()) << recipe.at("recipe");
        const double cosine = recipe.at("cosine_median"), error = recipe.at("rel_l1_median");
        EXPECT_GT(cosine, 0.9) << recipe.at("recipe");
        EXPECT_EQ(error < 1e-5, recipe.at("recipe") == "fp32_fp32") << recipe.at("recipe") << " " << error;
    }
    for (const char* recipe : {"int8_int8:accurate", "int8_int8:fast", "int8_fp16:accurate", "int8_fp16:sage2",
                               "int8_fp8:sage2", "fp4_fp4:accurate"})
        EXPECT_TRUE(recipes.count(recipe)) << recipe;
    EXPECT_NE(read_bytes("page.html").find("int8_fp16:sage2"), std::string::npos);
    const std::string text =
        run_ok(fmt::format("accuracy {} --recipe int8_int8,int8_fp8 --repeat 1", path("in.safetensors"))).out;
    EXPECT_NE(text.find("emulated"), std::string::npos) << text;
    EXPECT_NE(text.find("| 0.99"), std::string::npos) << text;
}

TEST_F(Commands, AccuracyOfAPresetIsReproducible) {
    const std::string arguments =
        "accuracy --preset llm --shape 1,2,1,96,96,32 --recipe int8_int8 --repeat 0 --seed 7 --json";
    const nlohmann::json first = run_ok(arguments).json(), second = run_ok(arguments + " --threads 1").json();
    EXPECT_EQ(first.at("recipes")[0].at("rel_l1_median"), second.at("recipes")[0].at("rel_l1_median"));
}

TEST_F(Commands, BenchWritesRecords) {
    const std::string problem =
        "bench --batch 2 --q-heads 4 --kv-heads 2 --head-dim 32 --seq-lengths 64,96 --causal --repeat 2 ";
    const nlohmann::json records = run_ok(problem + "--recipe int8_int8 --json --svg " + path("bench.svg")).json();
    ASSERT_EQ(records.size(), 6u);  // call, kernel, quantize for each length
    std::set<std::string> whats;
    for (const auto& record : records) {
        for (const char* key :
             {"date", "commit", "machine", "clock_mhz", "protocol",    "backend", "kernel", "recipe",   "tile",
              "data", "what",   "batch",   "q_heads",   "kv_heads",    "q_len",   "kv_len", "head_dim", "causal",
              "ms",   "ms_iqr", "tops",    "baseline",  "baseline_ms", "ratio",   "rel_l1"})
            EXPECT_TRUE(record.contains(key)) << key;
        EXPECT_EQ(record.size(), 25u);
        whats.insert(record.at("what").get<std::string>());
        EXPECT_GT(record.at("ms").get<double>(), 0);
        EXPECT_NEAR(record.at("ratio").get<double>(),
                    record.at("baseline_ms").get<double>() / record.at("ms").get<double>(), 1e-9);
        EXPECT_LT(record.at("rel_l1").get<double>(), 0.05);
        EXPECT_EQ(record.at("recipe"), "int8_int8:accurate");
        EXPECT_TRUE(record.at("causal").get<bool>());
    }
    EXPECT_EQ(whats, (std::set<std::string>{"call", "kernel", "quantize"}));
    EXPECT_TRUE(read_bytes("bench.svg").starts_with("<svg"));
    const nlohmann::json checked = run_ok(problem + "--correctness-only --json").json();
    EXPECT_TRUE(checked[0].at("ms").is_null());
    EXPECT_FALSE(checked[0].at("rel_l1").is_null());
    const nlohmann::json timed = run_ok(problem + "--bench-only --json").json();
    EXPECT_TRUE(timed[0].at("rel_l1").is_null());
    EXPECT_TRUE(run_ok(problem + "--markdown").out.starts_with("| length"));
}

TEST_F(Commands, QuantizeAndInspect) {
    save_file(path("in.safetensors"), small_capture(20, 140));
    const std::string quantize =
        fmt::format("quantize {} -o {} --recipe int8_int8 ", path("in.safetensors"), path("p.safetensors"));
    run_ok(quantize);
    const std::string first = read_bytes("p.safetensors");
    run_ok(quantize + "--threads 1");
    EXPECT_EQ(read_bytes("p.safetensors"), first) << "the same bytes every time";
    const io::TensorFile packed = load_file(path("p.safetensors"));
    ASSERT_NE(packed.find("q.q_codes"), nullptr);
    ASSERT_NE(packed.find("kv.k_codes"), nullptr);
    EXPECT_EQ(packed.find("kv.k_codes")->shape, (std::vector<int64_t>{1, 2, 256, 16}));  // 140 keys in tiles of 128
    EXPECT_EQ(packed.find("kv.lengths")->as<int64_t>()[0], 140);
    EXPECT_EQ(packed.metadata.at("recipe"), "int8_int8:accurate");
    const nlohmann::json json = run_ok("inspect " + path("p.safetensors") + " --json").json();
    EXPECT_EQ(json.at("metadata").at("tile"), "128");
    for (const auto& tensor : json.at("tensors")) {
        EXPECT_EQ(tensor.at("non_finite"), 0);
        if (tensor.at("name") == "kv.k_codes") {
            EXPECT_LE(tensor.at("amax").get<double>(), 127);
        }
        if (tensor.at("name") == "q.q_scale") {
            EXPECT_GT(tensor.at("min").get<double>(), 0);
        }
    }
    EXPECT_NE(run_ok("inspect " + path("p.safetensors")).out.find("kv.v_codes"), std::string::npos);
}

TEST_F(Commands, InspectCounts) {
    io::TensorFile file;
    file.tensors.push_back(make_values("x", {3}, 1));
    const auto x = file.tensors[0].as<float>();
    x[0] = 0;
    x[1] = -4;
    x[2] = INFINITY;
    save_file(path("x.npy"), file);
    const nlohmann::json tensor = run_ok("inspect --json " + path("x.npy")).json().at("tensors")[0];
    EXPECT_EQ(tensor.at("zeros"), 1);
    EXPECT_EQ(tensor.at("non_finite"), 1);
    EXPECT_EQ(tensor.at("amax"), 4);
    EXPECT_EQ(tensor.at("mean"), -2);
    save_file(path("caf\xe9.npy"), file);  // a name that is not UTF-8
    EXPECT_EQ(run_ok("inspect --json " + path("caf\xe9.npy")).json().at("tensors").size(), 1u);
}

TEST_F(Commands, VerifyPasses) {
    const nlohmann::json json = run_ok("verify --json").json();
    EXPECT_GE(json.size(), 7u);
    for (const auto& entry : json) EXPECT_TRUE(entry.at("pass").get<bool>()) << entry;
}

}  // namespace
}  // namespace clary::test
