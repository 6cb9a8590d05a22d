// SPDX-License-Identifier: Apache-2.0
// Whatever is wrong: one line on standard error that starts with "clary: " and names the culprit, exit code 2, nothing
// on standard output, and the output file as it was.
#include <fmt/format.h>

#include <limits>

#include "program.h"

namespace clary::test {
namespace {

class BadInput : public Folder {
  protected:
    BadInput() { save_file(path("good.safetensors"), small_capture()); }

    void expect_refused(const std::string& arguments, const std::vector<std::string>& words, int exit_code = 2) {
        SCOPED_TRACE(arguments);
        const Outcome outcome = run_clary(arguments);
        EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
        EXPECT_EQ(outcome.out, "");
        EXPECT_TRUE(outcome.err.starts_with("clary: ")) << outcome.err;
        EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
        for (const std::string& word : words)
            EXPECT_NE(outcome.err.find(word), std::string::npos) << word << "\n" << outcome.err;
    }

    // `run` on an input, with an output file that must keep its content.
    void expect_run_refused(const std::string& input, const std::string& options,
                            const std::vector<std::string>& words) {
        write_bytes("out.safetensors", "kept");
        expect_refused(fmt::format("run {} -o {} {}", path(input), path("out.safetensors"), options), words);
        EXPECT_EQ(read_bytes("out.safetensors"), "kept");
        for (const auto& entry : std::filesystem::directory_iterator(path("")))
            EXPECT_EQ(entry.path().string().find("out.safetensors."), std::string::npos) << entry.path();
    }

    void save_good(const std::string& name, io::TensorFile file) { save_file(path(name), file); }
};

std::string safetensors(const std::string& header, size_t data_bytes) {
    std::string file(8, '\0');
    for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>((header.size() >> (8 * i)) & 0xff);
    return file + header + std::string(data_bytes, '\0');
}

TEST_F(BadInput, TruncatedFile) {
    const std::string good = read_bytes("good.safetensors");
    for (const size_t size : {size_t{0}, size_t{7}, size_t{40}, good.size() - 1}) {
        write_bytes("bad.safetensors", good.substr(0, size));
        expect_run_refused("bad.safetensors", "", {"bad.safetensors"});
    }
}

TEST_F(BadInput, HeaderThatLies) {
    write_bytes("huge.safetensors", std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8) + "{}");
    expect_run_refused("huge.safetensors", "", {"huge.safetensors", "header"});
    write_bytes("shape.safetensors",
                safetensors(R"({"q":{"dtype":"F32","shape":[1,1,9,4],"data_offsets":[0,16]}})", 16));
    expect_run_refused("shape.safetensors", "", {"shape.safetensors", "q", "[1, 1, 9, 4]"});
    write_bytes("range.safetensors",
                safetensors(R"({"q":{"dtype":"F32","shape":[1,1,1,4],"data_offsets":[0,160]}})", 16));
    expect_run_refused("range.safetensors", "", {"range.safetensors", "q"});
    write_bytes("json.safetensors", safetensors("{not json", 0));
    expect_run_refused("json.safetensors", "", {"json.safetensors"});
}

TEST_F(BadInput, MissingFile) {
    expect_run_refused("absent.safetensors", "", {"absent.safetensors"});
    expect_refused("inspect " + path("absent.npy"), {"absent.npy"});
}

TEST_F(BadInput, UnknownExtension) {
    write_bytes("q.txt", "hello");
    expect_run_refused("q.txt", "", {"q.txt", "safetensors"});
}

TEST_F(BadInput, MissingTensor) {
    io::TensorFile file = small_capture();
    file.tensors.pop_back();
    save_good("no_v.safetensors", file);
    expect_run_refused("no_v.safetensors", "", {"no_v.safetensors", "'v'", "missing"});
    file.tensors.erase(file.tensors.begin());
    save_good("no_q.safetensors", file);
    expect_run_refused("no_q.safetensors", "", {"no_q.safetensors", "'q'"});
}

TEST_F(BadInput, WrongDtypeAndRank) {
    io::TensorFile file = small_capture();
    file.tensors[0].dtype = DType::kI32;
    save_good("int.safetensors", file);
    expect_run_refused("int.safetensors", "", {"'q'", "int32", "allowed: fp32, fp16, bf16"});
    file = small_capture();
    file.tensors[1].shape = {40, 16};
    save_good("rank.safetensors", file);
    expect_run_refused("rank.safetensors", "", {"'k'", "[40, 16]", "allowed"});
}

TEST_F(BadInput, ShapesThatDoNotFit) {
    io::TensorFile file = small_capture();
    file.tensors[1] = make_values("k", {1, 2, 20, 24}, 2);
    save_good("dim.safetensors", file);
    expect_run_refused("dim.safetensors", "", {"k: head_dim is 24", "16"});
    file.tensors[1] = make_values("k", {1, 3, 20, 16}, 2);
    file.tensors[2] = make_values("v", {1, 3, 20, 16}, 2);
    save_good("heads.safetensors", file);
    expect_run_refused("heads.safetensors", "", {"heads 4", "3"});
    file.tensors[1] = make_values("k", {1, 2, 21, 16}, 2);
    file.tensors[2] = make_values("v", {1, 2, 20, 16}, 2);
    save_good("tokens.safetensors", file);
    expect_run_refused("tokens.safetensors", "", {"v: tokens is 20", "21"});
}

TEST_F(BadInput, MaskThatDoesNotFit) {
    io::TensorFile file = small_capture();
    file.tensors.push_back(make_values("mask", {20, 19}, 4));
    save_good("mask.safetensors", file);
    expect_run_refused("mask.safetensors", "", {"mask", "19"});
}

TEST_F(BadInput, UnknownRecipe) {
    expect_run_refused("good.safetensors", "--recipe int9_int8", {"recipe", "'int9_int8'", "int8_int8"});
    expect_run_refused("good.safetensors", "--recipe int8_int8:best", {"preset", "'best'", "accurate, fast, sage2"});
    expect_run_refused("good.safetensors", "--recipe int8_int8+turbo", {"option", "'turbo'", "smooth_k"});
    expect_run_refused("good.safetensors", "--recipe int8_int8:sage2", {"int8_int8", "sage2", "accurate, fast"});
}

TEST_F(BadInput, UnknownOrAbsentBackend) {
    expect_run_refused("good.safetensors", "--backend tpu", {"backend", "'tpu'", "cpu", "reference"});
    expect_run_refused("good.safetensors", "--backend maca", {"backend", "'maca'", "not part of this build"});
}

TEST_F(BadInput, CombinationWithoutKernel) {
    expect_run_refused("good.safetensors", "--backend cpu --recipe int8_fp8", {"int8_fp8", "cpu"});
    expect_run_refused("good.safetensors", "--recipe int8_int8+smooth_q_block+no_smooth_q", {"smooth_q_block"});
    expect_refused(fmt::format("quantize {} -o {} --backend reference --recipe int8_int8", path("good.safetensors"),
                               path("p.safetensors")),
                   {"reference", "packed"});
}

TEST_F(BadInput, WrongOptionValues) {
    expect_run_refused("good.safetensors", "--layout bhnd", {"--layout", "'bhnd'", "hnd, nhd"});
    expect_run_refused("good.safetensors", "--causal=maybe", {"--causal", "'maybe'", "top_left", "bottom_right"});
    expect_run_refused("good.safetensors", "--scale many", {"--scale"});
    expect_run_refused("good.safetensors", "--threads -1", {"--threads"});
    expect_run_refused("good.safetensors", "--layer layer.07", {"--layer", "layer.07"});
    expect_run_refused("good.safetensors", "--bogus", {"--bogus"});
}

TEST_F(BadInput, CausalWithoutACorner) {
    save_good("decode.safetensors", small_capture(1, 20));
    expect_run_refused("decode.safetensors", "--causal", {"--causal", "q_len (1)", "kv_len (20)", "bottom_right"});
}

TEST_F(BadInput, WrongMetadata) {
    for (const auto& [key, value, allowed] : {std::tuple{"layout", "dhn", "hnd, nhd"},
                                              {"causal", "yes", "top_left"},
                                              {"scale", "1/8", "a finite number"}}) {
        io::TensorFile file = small_capture();
        file.metadata[key] = value;
        save_good("meta.safetensors", file);
        expect_run_refused("meta.safetensors", "", {"meta.safetensors", key, value, allowed});
    }
}

TEST_F(BadInput, UnwritableOutput) {
    const std::string run = "run " + path("good.safetensors") + " -o ";
    expect_refused(run + path("absent/out.safetensors"), {"absent/out.safetensors"});
    expect_refused(run + path("out.txt"), {"out.txt"});
    expect_refused(run + path("out.npy") + " --lse", {"out.npy"});  // two tensors do not fit
    expect_refused(
        "accuracy " + path("good.safetensors") + " --recipe fp32_fp32 --repeat 0 --html " + path("absent/page.html"),
        {"absent/page.html"});
}

TEST_F(BadInput, UsageErrors) {
    expect_refused("", {"no command", "accuracy, bench"});
    expect_refused("frobnicate", {"'frobnicate'", "accuracy, bench"});
    expect_refused("run " + path("good.safetensors"), {"--output"});
    expect_refused("explain", {"--shape"});
    expect_refused("explain --shape 1,2,3", {"--shape 1,2,3", "6 or 7"});
    expect_refused("explain --shape 1,2,2,5,5,x", {"--shape", "'x'"});
    expect_refused("explain --shape 1,3,2,5,5,64", {"heads 3", "2"});
    expect_refused("accuracy --preset nothing", {"'nothing'", "llm"});
    expect_refused("accuracy --preset llm --shape 1,3,2,64,64,64", {"3 query heads", "2 kv heads"});
    expect_refused("bench --bench-only --correctness-only", {"--bench-only", "--correctness-only"});
    expect_refused("bench --seq-lengths 0", {"--seq-lengths"});
    expect_refused("verify --backend maca", {"maca"});
}

// Not refused: counted in one line, and every row that meets such a value is NaN.
TEST_F(BadInput, NonFiniteValuesGiveOneWarningAndNaNRows) {
    io::TensorFile file = small_capture();
    file.tensors[0].as<float>()[3] = std::numeric_limits<float>::quiet_NaN();
    file.tensors[2].as<float>()[5] = std::numeric_limits<float>::infinity();
    file.tensors[2].as<float>()[6] = -std::numeric_limits<float>::infinity();
    save_good("nan.safetensors", file);
    for (const char* recipe : {"int8_int8", "fp32_fp32"}) {
        const Outcome outcome =
            run_clary(fmt::format("run {} -o {} --recipe {}", path("nan.safetensors"), path("o.safetensors"), recipe));
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
        EXPECT_NE(outcome.err.find("1 of 1280 in q, 2 of 640 in v"), std::string::npos) << outcome.err;
        const io::TensorFile result = load_file(path("o.safetensors"));
        const auto out = result.find("out")->as<float>();
        // Heads 0 and 1 read the kv head with the infinities; heads 2 and 3 see finite values only.
        for (size_t i = 0; i < out.size() / 2; i += 16) EXPECT_TRUE(std::isnan(out[i + 5])) << i;
        for (size_t i = out.size() / 2; i < out.size(); ++i) EXPECT_TRUE(std::isfinite(out[i])) << i;
        for (size_t i = 0; i < 16; ++i) EXPECT_TRUE(std::isnan(out[i])) << i;  // the row of q
    }
}

}  // namespace
}  // namespace clary::test
