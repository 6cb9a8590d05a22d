// SPDX-License-Identifier: Apache-2.0
#include "metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace clary::cli {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Sums over any set of value pairs (exact o, result r).
struct Sums {
    double oo = 0, rr = 0, orr = 0, abs_o = 0, abs_d = 0, dd = 0, max_abs = 0;
    int64_t count = 0;

    void add(double o, double r) {
        const double d = o - r;
        oo += o * o;
        rr += r * r;
        orr += o * r;
        abs_o += std::abs(o);
        abs_d += std::abs(d);
        dd += d * d;
        max_abs = std::isnan(d) ? kNaN : std::max(max_abs, std::abs(d));
        ++count;
    }
    void add(const Sums& other) {
        oo += other.oo;
        rr += other.rr;
        orr += other.orr;
        abs_o += other.abs_o;
        abs_d += other.abs_d;
        dd += other.dd;
        max_abs = std::isnan(max_abs + other.max_abs) ? kNaN : std::max(max_abs, other.max_abs);
        count += other.count;
    }
    double cosine() const {
        if (oo == 0 && rr == 0) return 1;  // both all zeros: equal
        return orr / std::sqrt(oo * rr);
    }
    // Where the exact values are all zero, any difference is infinitely large.
    double relative_l1() const { return abs_d == 0 ? 0 : abs_d / abs_o; }
    double rmse() const { return count == 0 ? 0 : std::sqrt(dd / static_cast<double>(count)); }
};

double larger(double a, double b) { return std::isnan(a) || std::isnan(b) ? kNaN : std::max(a, b); }

}  // namespace

Metrics compare(const io::Tensor& exact, const io::Tensor& result, MemoryLayout layout) {
    const clary_tensor view = logical_view(exact, layout);
    const float* o = exact.as<float>().data();
    const float* r = result.as<float>().data();
    Metrics metrics;
    Sums whole;
    std::vector<double> row_errors;
    for (int64_t b = 0; b < view.shape[0]; ++b) {
        for (int64_t h = 0; h < view.shape[1]; ++h) {
            Sums head;
            for (int64_t row = 0; row < view.shape[2]; ++row) {
                const int64_t begin = b * view.stride[0] + h * view.stride[1] + row * view.stride[2];
                Sums sums;
                bool finite = true;
                for (int64_t i = begin; i < begin + view.shape[3]; ++i) {
                    finite = finite && std::isfinite(o[i]);
                    sums.add(o[i], r[i]);
                }
                if (!finite) {
                    ++metrics.skipped_rows;
                    continue;
                }
                row_errors.push_back(sums.relative_l1());
                head.add(sums);
            }
            metrics.heads.push_back({head.cosine(), head.relative_l1()});
            metrics.worst_head_l1 = larger(metrics.worst_head_l1, head.relative_l1());
            whole.add(head);
        }
    }
    metrics.cosine = whole.cosine();
    metrics.relative_l1 = whole.relative_l1();
    metrics.rmse = whole.rmse();
    metrics.max_abs = whole.max_abs;
    metrics.p999_row_l1 = percentile(std::move(row_errors), 0.999);
    return metrics;
}

double percentile(std::vector<double> values, double fraction) {
    if (values.empty()) return 0;
    const auto nan_last = [](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; };
    std::sort(values.begin(), values.end(), nan_last);
    const auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(values.size())));
    return values[std::clamp<size_t>(rank, 1, values.size()) - 1];
}

double median(std::vector<double> values) {
    if (values.size() % 2 == 1) return percentile(std::move(values), 0.5);
    const double lower = percentile(values, 0.5);
    return values.empty() ? 0 : (lower + percentile(values, 0.5 + 1e-9)) / 2;
}

double interquartile_range(const std::vector<double>& values) {
    return percentile(values, 0.75) - percentile(values, 0.25);
}

}  // namespace clary::cli
