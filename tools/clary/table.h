// SPDX-License-Identifier: Apache-2.0
// A table of text cells, printed aligned; the aligned form is also valid Markdown.
#pragma once

#include <string>
#include <vector>

namespace clary::cli {

class Table {
  public:
    // A header that ends in '>' makes a right-aligned column (numbers); the '>' is not shown.
    explicit Table(const std::vector<std::string>& headers);
    void add(std::vector<std::string> cells);
    std::string text() const;

  private:
    std::vector<std::vector<std::string>> rows_;  // rows_[0]: the headers
    std::vector<bool> right_;
};

}  // namespace clary::cli
