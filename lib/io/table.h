#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tandem::io {

enum class Align : uint8_t { left, right };
enum class TableFormat : uint8_t { text, markdown, csv };

/// Rows of text cells under titled columns. Numbers are formatted by the caller, who knows how many
/// digits mean something.
class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::right;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// As many cells as there are columns.
  void add_row(std::vector<std::string> cells);
  size_t n_rows() const { return rows_.size(); }

  /// text: columns padded with spaces, two between them. markdown: a pipe table, padded too, '|'
  /// and line breaks escaped. csv: RFC 4180, lines end in a bare newline.
  std::string render(TableFormat format) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tandem::io
