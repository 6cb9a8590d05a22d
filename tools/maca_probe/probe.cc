// SPDX-License-Identifier: Apache-2.0
// Verifies on a card everything that src/maca believes about it and nobody here could try: one line per belief, PASS or
// FAIL, and with --json FILE the same to send back. Runs on the simulator too, where it tests the simulator.
//
//   maca_probe [--device N] [--json FILE]
//
// Each probe is a kernel of one wave (or four) that goes through maca::Target, the very code of the backend, and writes what
// it saw to a buffer that the host compares with the definition.
#include <fmt/format.h>
#include <mc_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/target/products.h"
#include "maca/target.h"
#include "numerics/formats.h"

namespace clary::maca {
namespace {

using gpu::Coord, gpu::Tile, gpu::Bytes16;

constexpr int kWords = 16384;  // of a buffer

struct Params {
    const uint32_t* in;
    uint32_t* out;
    int value;  // of the probe
};

// Small whole numbers, so that products are exact in any order.
CLARY_HD int number_at(int row, int col, int salt) { return (row * 7 + col * 13 + salt * 5) % 15 - 7; }

template <Element kElement>
CLARY_HD uint32_t bits_of(int x) {
    if constexpr (kElement == Element::kS8) return static_cast<uint32_t>(x) & 255u;
    if constexpr (kElement == Element::kE4m3) return numerics::E4m3::from_float(static_cast<float>(x)).bits;
    if constexpr (kElement == Element::kF16) return numerics::Fp16::from_float(static_cast<float>(x)).bits;
    if constexpr (kElement == Element::kBf16) return numerics::Bf16::from_float(static_cast<float>(x)).bits;
    return 0;
}

// -- lane tables: operands filled by the atom's table, results stored by it --
template <class T, class Atom>
struct Product {
    using Result = std::conditional_t<Atom::kResult == Element::kS32, int32_t, float>;
    CLARY_DEVICE static void run(const Params& p) {
        const int lane = T::lane();
        Fragment<uint32_t, gpu::kQueryRegisters<Atom>> q{};
        Fragment<uint32_t, gpu::kOtherRegisters<Atom>> o{};
        for (int i = 0; i < Atom::kQueryElements; ++i) {
            const Coord a = Atom::query_at(lane, i), b = Atom::other_at(lane, i);
            const int shift = i % Atom::kRun * gpu::element_bits(Atom::kQuery);
            q[i / Atom::kRun] |= bits_of<Atom::kQuery>(number_at(a.row, a.col, 1)) << shift;
            o[i / Atom::kRun] |= bits_of<Atom::kOther>(number_at(b.row, b.col, 2)) << shift;
        }
        Fragment<Result, 4> d;
        for (int i = 0; i < 4; ++i) d[i] = static_cast<Result>(i);
        T::template mma<Atom>(q, o, d);
        for (int i = 0; i < 4; ++i) {
            const Coord at = Atom::result_at(lane, i);
            p.out[at.row * 16 + at.col] = static_cast<uint32_t>(static_cast<int>(d[i]) - i);
        }
    }
    static std::string check(const std::vector<uint32_t>& out) {
        for (int row = 0; row < 16; ++row)
            for (int col = 0; col < 16; ++col) {
                int sum = 0;
                for (int k = 0; k < Atom::kDepth; ++k) sum += number_at(row, k, 1) * number_at(col, k, 2);
                const int found = static_cast<int>(out[static_cast<size_t>(row * 16 + col)]);
                if (found != sum) return fmt::format("query {}, other {}: {}, expected {}", row, col, found, sum);
            }
        return "";
    }
};

// -- copies: a wave's 64 x 16 bytes go behind lane 0's place in the order of lanes, also where the sources are permuted;
// lanes that are off leave their places; the counter counts instructions, oldest first --
template <class T>
struct Copies {
    static constexpr int kCount = 4;
    CLARY_DEVICE static void run(const Params& p) {
        const int lane = T::lane();
        const auto place = [=](int copy) { return SharedAddress{static_cast<uint32_t>(copy * 1024 + lane * 16)}; };
        for (int copy = 0; copy < kCount; ++copy) T::store(place(copy), Bytes16{{77, 77, 77, 77}});
        T::block_sync();
        for (int copy = 0; copy < kCount; ++copy) {
            const int source = (lane ^ 5) + 64 * copy;
            T::copy16(place(copy), p.in + source * 4, lane % 3 != 1, lane < 50);
        }
        T::template wait<1, 1>();  // all but the youngest
        T::block_sync();
        for (int copy = 0; copy < kCount - 1; ++copy) store(p, copy, T::template load<Bytes16>(place(copy)));
        T::template wait<0, 1>();
        T::block_sync();
        store(p, kCount - 1, T::template load<Bytes16>(place(kCount - 1)));
    }
    CLARY_DEVICE static void store(const Params& p, int copy, Bytes16 bytes) {
        for (int i = 0; i < 4; ++i) p.out[(copy * 64 + T::lane()) * 4 + i] = bytes.word[i];
    }
    static std::string check(const std::vector<uint32_t>& in, const std::vector<uint32_t>& out) {
        for (int copy = 0; copy < kCount; ++copy)
            for (int lane = 0; lane < 64; ++lane)
                for (int i = 0; i < 4; ++i) {
                    const auto source = static_cast<size_t>(((lane ^ 5) + 64 * copy) * 4 + i);
                    const uint32_t expected = lane >= 50 ? 77 : lane % 3 == 1 ? 0 : in[source];
                    const uint32_t found = out[static_cast<size_t>((copy * 64 + lane) * 4 + i)];
                    if (found != expected)
                        return fmt::format("copy {}, lane {}: {:#x}, expected {:#x}", copy, lane, found, expected);
                }
        return "";
    }
};

// -- operands from a swizzled tile of 16 bits with depth down its rows --
template <class T>
struct Transposed {
    using Atom = gpu::Product<T::kChip, Element::kF16, Element::kF16, Element::kF32>;
    using TileType = Tile<32, 128>;
    CLARY_DEVICE static void run(const Params& p) {
        const int lane = T::lane();
        for (int i = lane; i < 32 * 64; i += 64) {
            const int row = i / 64, col = i % 64;
            T::store(TileType{}.at(row, col * 2), static_cast<uint16_t>(row * 64 + col));
        }
        T::block_sync();
        const auto f = T::template load_other_transposed<Atom, 2>(TileType{}, 16, 32);
        for (int i = 0; i < 4; ++i) p.out[lane * 4 + i] = f[i];
    }
    static std::string check(const std::vector<uint32_t>& out) {
        for (int lane = 0; lane < 64; ++lane)
            for (int element = 0; element < 8; ++element) {
                const Coord at = Atom::other_at(lane, element % 4);
                const int expected = (16 + at.col) * 64 + 32 + element / 4 * 16 + at.row;
                const uint32_t word = out[static_cast<size_t>(lane * 4 + element / 2)];
                const int found = static_cast<int>(word >> (element % 2 * 16) & 0xffffu);
                if (found != expected)
                    return fmt::format("lane {}, element {}: {}, expected {}", lane, element, found, expected);
            }
        return "";
    }
};

// -- between lanes --
template <class T>
struct Exchange {
    CLARY_DEVICE static void run(const Params& p) {
        const int lane = T::lane();
        int at = lane;
        for (const int mask : {1, 2, 4, 8, 16, 32}) {
            p.out[at] = static_cast<uint32_t>(T::shuffle_xor(lane * 3, mask));
            at += 64;
        }
        p.out[at] = T::any(lane == 63);
        p.out[at + 64] = T::any(lane == 64);
        p.out[at + 128] = static_cast<uint32_t>(T::row_sum(lane));
        p.out[at + 192] = static_cast<uint32_t>(static_cast<int>(T::row_max(static_cast<float>((lane * 37) % 64))));
    }
    static std::string check(const std::vector<uint32_t>& out) {
        for (int lane = 0; lane < 64; ++lane) {
            const auto expect = [&](int slot, int expected) {
                const int found = static_cast<int>(out[static_cast<size_t>(slot * 64 + lane)]);
                return found == expected
                           ? ""
                           : fmt::format("part {}, lane {}: {}, expected {}", slot, lane, found, expected);
            };
            int highest = 0;
            for (int g = 0; g < 4; ++g) highest = std::max(highest, (lane % 16 + 16 * g) * 37 % 64);
            std::string bad;
            for (int i = 0; i < 6 && bad.empty(); ++i) bad = expect(i, (lane ^ 1 << i) * 3);
            if (bad.empty()) bad = expect(6, 1);
            if (bad.empty()) bad = expect(7, 0);
            if (bad.empty()) bad = expect(8, 4 * (lane % 16) + 96);
            if (bad.empty()) bad = expect(9, highest);
            if (!bad.empty()) return bad;
        }
        return "";
    }
};

// -- conversions, bit for bit: `in` holds floats --
inline float input(const uint32_t* in, int i) { return numerics::bit_cast<float>(in[i]); }
constexpr int kNumbers = 2048;
template <class T>
struct Conversions {
    CLARY_DEVICE static void run(const Params& p) {
        for (int i = T::lane(); i < kNumbers / 4; i += 64) {
            float x[4];
            for (int j = 0; j < 4; ++j) x[j] = numerics::bit_cast<float>(p.in[i * 4 + j]);
            uint32_t* const out = p.out + i * 8;
            out[0] = T::template pack4<Element::kS8>(x[0], x[1], x[2], x[3]);
            out[1] = T::template pack4<Element::kU8>(x[0], x[1], x[2], x[3]);
            out[2] = T::template pack2<Element::kF16>(x[0], x[1]);
            out[3] = T::template pack2<Element::kBf16>(x[0], x[1]);
            out[4] = numerics::bit_cast<uint32_t>(T::template unpack2<Element::kF16>(out[2], 1));
            out[5] = numerics::bit_cast<uint32_t>(T::template unpack2<Element::kBf16>(out[3], 1));
            out[6] = T::low_bytes(p.in[i * 4], p.in[i * 4 + 1], p.in[i * 4 + 2], p.in[i * 4 + 3]);
            out[7] = 0;
            if constexpr (T::kChip.chip == gpu::Chip::kXcore1500)
                out[7] = T::template pack4<Element::kE4m3>(x[0], x[1], x[2], x[3]);
        }
    }
    static std::string check(const std::vector<uint32_t>& in, const std::vector<uint32_t>& out, bool fp8) {
        const auto whole = [](float x, int low) {
            if (std::isnan(x)) x = 0;
            return static_cast<uint32_t>(static_cast<int>(std::fmin(
                       std::fmax(std::nearbyint(x), static_cast<float>(low)), static_cast<float>(low + 255)))) &
                   255u;
        };
        for (int i = 0; i < kNumbers / 4; ++i) {
            uint32_t s8 = 0, u8 = 0, e4m3 = 0, low = 0;
            float x[4];
            for (int j = 0; j < 4; ++j) {
                x[j] = numerics::bit_cast<float>(in[static_cast<size_t>(i * 4 + j)]);
                s8 |= whole(x[j], -128) << 8 * j;
                u8 |= whole(x[j], 0) << 8 * j;
                e4m3 |= static_cast<uint32_t>(numerics::E4m3::from_float(x[j]).bits) << 8 * j;
                low |= (in[static_cast<size_t>(i * 4 + j)] & 255u) << 8 * j;
            }
            const auto half = numerics::Fp16::from_float(x[0]), half1 = numerics::Fp16::from_float(x[1]);
            const auto bf = numerics::Bf16::from_float(x[0]), bf1 = numerics::Bf16::from_float(x[1]);
            const auto bits = [](float y) { return numerics::bit_cast<uint32_t>(y); };
            const uint32_t expected[8] = {s8,
                                          u8,
                                          half.bits | static_cast<uint32_t>(half1.bits) << 16,
                                          bf.bits | static_cast<uint32_t>(bf1.bits) << 16,
                                          bits(half1.to_float()),
                                          bits(bf1.to_float()),
                                          low,
                                          fp8 ? e4m3 : 0};
            constexpr const char* kNames[8] = {"s8", "u8", "f16", "bf16", "f16 back", "bf16 back", "low_bytes", "e4m3"};
            for (int k = 0; k < 8; ++k) {
                const uint32_t found = out[static_cast<size_t>(i * 8 + k)];
                if (found != expected[k])
                    return fmt::format("{} of {} {} {} {}: {:#x}, expected {:#x}", kNames[k], x[0], x[1], x[2], x[3],
                                       found, expected[k]);
            }
        }
        return "";
    }
};

// -- approximations: `in` holds floats; largest errors in units of 2^-21 --
template <class T>
struct Math {
    CLARY_DEVICE static void run(const Params& p) {
        for (int i = T::lane(); i < kNumbers; i += 64) {
            const float x = static_cast<float>(i - kNumbers / 2) * 0.0625f;  // -64 .. 64
            const float y = 0.0625f + static_cast<float>(i) * (16.0f / kNumbers);
            p.out[i * 3] = numerics::bit_cast<uint32_t>(T::exp2(x));
            p.out[i * 3 + 1] = numerics::bit_cast<uint32_t>(T::log2(y));
            p.out[i * 3 + 2] = numerics::bit_cast<uint32_t>(T::rcp(y));
        }
        if (T::lane() == 0) p.out[kNumbers * 3] = numerics::bit_cast<uint32_t>(T::exp2(-__builtin_huge_valf()));
    }
    static std::string check(const std::vector<uint32_t>& out) {
        const auto at = [&](int i) {
            return static_cast<double>(numerics::bit_cast<float>(out[static_cast<size_t>(i)]));
        };
        for (int i = 0; i < kNumbers; ++i) {
            const double x = (i - kNumbers / 2) * 0.0625, y = 0.0625 + i * (16.0 / kNumbers);
            if (std::abs(at(i * 3) / std::exp2(x) - 1) > 0x1p-21) return fmt::format("exp2({}) = {}", x, at(i * 3));
            if (std::abs(at(i * 3 + 1) - std::log2(y)) > 0x1p-21) return fmt::format("log2({}) = {}", y, at(i * 3 + 1));
            if (std::abs(at(i * 3 + 2) * y - 1) > 0x1p-21) return fmt::format("1 / {} = {}", y, at(i * 3 + 2));
        }
        return at(kNumbers * 3) == 0 ? "" : fmt::format("exp2(-inf) = {}", at(kNumbers * 3));
    }
};

// -- shared memory: four waves write all that a block may have and read what the others wrote --
template <class T>
struct SharedMemory {
    static constexpr int kThreads = 256;
    static constexpr int kBlocks = static_cast<int>(T::kSharedBytes) / 16;
    CLARY_DEVICE static void run(const Params& p) {
        const int thread = T::wave() * 64 + T::lane();
        for (int i = thread; i < kBlocks; i += kThreads)
            T::store(SharedAddress{static_cast<uint32_t>(i * 16)},
                     Bytes16{{static_cast<uint32_t>(i), static_cast<uint32_t>(~i), 3, 4}});
        T::block_sync();
        bool good = true;
        for (int i = kThreads - 1 - thread; i < kBlocks; i += kThreads) {
            const auto found = T::template load<Bytes16>(SharedAddress{static_cast<uint32_t>(i * 16)});
            good = good && found.word[0] == static_cast<uint32_t>(i) && found.word[1] == static_cast<uint32_t>(~i);
        }
        p.out[thread] = good;
    }
    static std::string check(const std::vector<uint32_t>& out) {
        for (int i = 0; i < kThreads; ++i)
            if (out[static_cast<size_t>(i)] != 1)
                return fmt::format("thread {} read something else than was written", i);
        return "";
    }
};

template <class Probe>
__global__ void __launch_bounds__(256) probe(const Params params) {
    Probe::run(params);
}

// -- the host's side --
struct Buffers {
    uint32_t *in = nullptr, *out = nullptr;
    std::vector<uint32_t> host_in = std::vector<uint32_t>(kWords);
    std::vector<uint32_t> host_out = std::vector<uint32_t>(kWords);
};
struct Finding {
    std::string name, why;  // "": as expected
};

template <class Probe, class Check>
Finding examine(const char* name, Buffers& b, int threads, uint32_t shared_bytes, const Check& check) {
    std::fill(b.host_out.begin(), b.host_out.end(), 0xdeadbeefu);
    constexpr size_t kBytes = kWords * sizeof(uint32_t);
    Params params{b.in, b.out, 0};
    void* arguments[] = {&params};
    const void* const kernel = kernel_symbol(probe<Probe>);
    mcError_t error = mcMemcpy(b.out, b.host_out.data(), kBytes, mcMemcpyHostToDevice);
    if (error == mcSuccess) error = mcMemcpy(b.in, b.host_in.data(), kBytes, mcMemcpyHostToDevice);
    if (error == mcSuccess)
        error = mcFuncSetAttribute(kernel, mcFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error == mcSuccess)
        error = mcLaunchKernel(kernel, dim3{1, 1, 1}, dim3{static_cast<unsigned>(threads), 1, 1}, arguments,
                               shared_bytes, nullptr);
    if (error == mcSuccess) error = mcDeviceSynchronize();
    if (error == mcSuccess) error = mcMemcpy(b.host_out.data(), b.out, kBytes, mcMemcpyDeviceToHost);
    if (error != mcSuccess) return {name, mcGetErrorString(error)};
    return {name, check()};
}

template <gpu::Machine kMachine>
std::vector<Finding> examine_all(Buffers& b) {
    using T = Target<kMachine>;
    constexpr bool kFp8 = kMachine.chip == gpu::Chip::kXcore1500;
    // Numbers around ties and limits of the formats, and what is no number.
    for (int i = 0; i < kWords; ++i) {
        const float x = i % 7 == 0   ? static_cast<float>(i % 600 - 300) * 0.5f
                        : i % 7 == 1 ? std::ldexp(static_cast<float>(i % 97 - 48), i % 40 - 30)
                                     : static_cast<float>(i * 2654435761u % 100003u) * 0.01f - 500.0f;
        b.host_in[static_cast<size_t>(i)] = numerics::bit_cast<uint32_t>(x);
    }
    const std::vector<uint32_t>&in = b.host_in, &out = b.host_out;
    std::vector<Finding> all;
    const auto product = [&]<Element kElement, Element kResult>(const char* name) {
        using P = Product<T, gpu::Product<kMachine, kElement, kElement, kResult>>;
        all.push_back(examine<P>(name, b, 64, 0, [&] { return P::check(out); }));
    };
    product.template operator()<Element::kS8, Element::kS32>("product of int8: lane tables and sums");
    product.template operator()<Element::kF16, Element::kF32>("product of fp16: lane tables and sums");
    product.template operator()<Element::kBf16, Element::kF32>("product of bf16: lane tables and sums");
    if constexpr (kFp8)
        product.template operator()<Element::kE4m3, Element::kF32>("product of e4m3: lane tables and sums");
    all.push_back(examine<Copies<T>>("copies to shared memory: places, predicates, counter", b, 64, 4096,
                                     [&] { return Copies<T>::check(in, out); }));
    all.push_back(examine<Transposed<T>>("operands with depth down the rows", b, 64, 4096,
                                         [&] { return Transposed<T>::check(out); }));
    all.push_back(examine<Exchange<T>>("exchange, votes and reductions over 64 lanes", b, 64, 0,
                                       [&] { return Exchange<T>::check(out); }));
    all.push_back(examine<Conversions<T>>("conversions, bit for bit", b, 64, 0,
                                          [&] { return Conversions<T>::check(in, out, kFp8); }));
    all.push_back(examine<Math<T>>("exp2, log2, rcp", b, 64, 0, [&] { return Math<T>::check(out); }));
    all.push_back(examine<SharedMemory<T>>("shared memory of a block, and its barrier", b, 256, T::kSharedBytes,
                                           [&] { return SharedMemory<T>::check(out); }));
    return all;
}

std::string quoted(std::string_view text) {
    std::string result = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        result += c == '\n' ? ' ' : c;
    }
    return result + '"';
}

int probe_device(int device, const char* json) {
    mcDeviceProp_t properties{};
    if (mcSetDevice(device) != mcSuccess || mcGetDeviceProperties(&properties, device) != mcSuccess) {
        fmt::print(stderr, "maca_probe: device {}: {}\n", device, mcGetErrorString(mcGetLastError()));
        return 2;
    }
    Buffers b;
    if (mcMalloc(reinterpret_cast<void**>(&b.in), kWords * 4) != mcSuccess ||
        mcMalloc(reinterpret_cast<void**>(&b.out), kWords * 4) != mcSuccess) {
        fmt::print(stderr, "maca_probe: out of memory\n");
        return 2;
    }
    std::vector<Finding> findings;
#ifdef CLARY_PROBE_1000
    if (properties.major == 10) findings = examine_all<gpu::kXcore1000>(b);
#endif
#ifdef CLARY_PROBE_1500
    if (properties.major == 15) findings = examine_all<gpu::kXcore1500>(b);
#endif
    mcFree(b.in);
    mcFree(b.out);
    if (findings.empty()) {
        fmt::print(stderr, "maca_probe: {}, major {}; this build knows 10 (xcore1000), 15 (xcore1500)\n",
                   properties.name, properties.major);
        return 2;
    }
    int failed = 0;
    std::string text =
        fmt::format("{{\"card\": {}, \"major\": {}, \"probes\": [", quoted(properties.name), properties.major);
    for (const Finding& finding : findings) {
        const bool good = finding.why.empty();
        failed += good ? 0 : 1;
        fmt::print("{} {}{}\n", good ? "PASS" : "FAIL", finding.name, good ? "" : ": " + finding.why);
        text += fmt::format("{}{{\"name\": {}, \"pass\": {}, \"why\": {}}}", &finding == findings.data() ? "" : ", ",
                            quoted(finding.name), good, quoted(finding.why));
    }
    fmt::print("{}: {} of {} as expected\n", properties.name, findings.size() - static_cast<size_t>(failed),
               findings.size());
    if (json != nullptr) {
        std::FILE* const file = std::fopen(json, "w");
        if (file == nullptr || std::fputs((text + "]}\n").c_str(), file) < 0 || std::fclose(file) != 0) {
            fmt::print(stderr, "maca_probe: cannot write {}\n", json);
            return 2;
        }
    }
    return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace clary::maca

int main(int argc, char** argv) {
    int device = 0;
    const char* json = nullptr;
    for (int i = 1; i < argc; ++i) {
        const std::string_view option = argv[i];
        if (option == "--device" && i + 1 < argc) {
            device = std::atoi(argv[++i]);
        } else if (option == "--json" && i + 1 < argc) {
            json = argv[++i];
        } else {
            fmt::print(stderr, "usage: maca_probe [--device N] [--json FILE]\n");
            return 2;
        }
    }
    return clary::maca::probe_device(device, json);
}
