// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <fmt/format.h>

#include <algorithm>

namespace clary::cli {

Table::Table(const std::vector<std::string>& headers) {
    rows_.emplace_back();
    for (const std::string& header : headers) {
        right_.push_back(header.ends_with('>'));
        rows_[0].push_back(header.substr(0, header.size() - (right_.back() ? 1 : 0)));
    }
}

void Table::add(std::vector<std::string> cells) {
    cells.resize(right_.size());
    rows_.push_back(std::move(cells));
}

std::string Table::text() const {
    std::vector<size_t> widths(right_.size(), 3);  // Markdown wants three dashes
    for (const auto& row : rows_)
        for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    std::string text;
    for (const auto& row : rows_) {
        for (size_t i = 0; i < row.size(); ++i)
            text +=
                right_[i] ? fmt::format("| {:>{}} ", row[i], widths[i]) : fmt::format("| {:<{}} ", row[i], widths[i]);
        text += "|\n";
        if (&row != rows_.data()) continue;
        for (size_t i = 0; i < row.size(); ++i)
            text += fmt::format("|{}{}", std::string(widths[i] + 1, '-'), right_[i] ? ':' : '-');
        text += "|\n";
    }
    return text;
}

}  // namespace clary::cli
