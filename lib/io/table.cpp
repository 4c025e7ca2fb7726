#include "io/table.h"

#include <utf8proc.h>

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "io/quote.h"

namespace tandem::io {
namespace {

using Cells = std::vector<std::string>;

/// Columns a terminal gives to the text: 2 for wide characters, 0 for combining ones.
size_t display_width(std::string_view text) {
  size_t width = 0;
  const auto* p = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  auto left = static_cast<utf8proc_ssize_t>(text.size());
  while (left > 0) {
    utf8proc_int32_t code = 0;
    const utf8proc_ssize_t n = utf8proc_iterate(p, left, &code);
    const utf8proc_ssize_t step = n > 0 ? n : 1;
    width += n > 0 ? static_cast<size_t>(utf8proc_charwidth(code)) : 1;
    p += step;
    left -= step;
  }
  return width;
}

std::string one_line(std::string_view text) {
  return replace_all(replace_all(text, "\r", " "), "\n", " ");
}

std::string markdown_cell(std::string_view text) {
  return replace_all(replace_all(replace_all(text, "|", "\\|"), "\r", ""), "\n", "<br>");
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return '"' + replace_all(text, "\"", "\"\"") + '"';
}

std::string padded(const std::string& text, size_t width, Align align) {
  const std::string space(width - std::min(width, display_width(text)), ' ');
  return align == Align::left ? text + space : space + text;
}

std::string joined(const Cells& cells, std::string_view before, std::string_view between,
                   std::string_view after) {
  std::string line(before);
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += between;
    line += cells[i];
  }
  return line.append(after) + "\n";
}

}  // namespace

void Table::add_row(std::vector<std::string> cells) {
  TANDEM_CHECK(cells.size() == columns_.size(), "{} cells for {} columns", cells.size(),
               columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::render(TableFormat format) const {
  std::vector<Cells> lines(1);
  for (const Column& column : columns_) lines[0].push_back(column.title);
  lines.insert(lines.end(), rows_.begin(), rows_.end());
  for (Cells& line : lines)
    for (std::string& cell : line)
      cell = format == TableFormat::csv        ? csv_cell(cell)
             : format == TableFormat::markdown ? markdown_cell(cell)
                                               : one_line(cell);
  std::string out;
  if (format == TableFormat::csv) {
    for (const Cells& line : lines) out += joined(line, "", ",", "");
    return out;
  }

  const bool is_markdown = format == TableFormat::markdown;
  std::vector<size_t> widths(columns_.size(), is_markdown ? 3 : 0);  // "---" needs three
  for (const Cells& line : lines)
    for (size_t i = 0; i < line.size(); ++i)
      widths[i] = std::max(widths[i], display_width(line[i]));
  for (Cells& line : lines)
    for (size_t i = 0; i < line.size(); ++i)
      line[i] = padded(line[i], widths[i], columns_[i].align);
  if (is_markdown) {
    Cells rule;
    for (size_t i = 0; i < columns_.size(); ++i)
      rule.push_back(columns_[i].align == Align::left ? std::string(widths[i], '-')
                                                      : std::string(widths[i] - 1, '-') + ":");
    lines.insert(lines.begin() + 1, rule);
    for (const Cells& line : lines) out += joined(line, "| ", " | ", " |");
    return out;
  }
  for (const Cells& line : lines) {
    std::string row = joined(line, "", "  ", "");
    row.erase(row.find_last_not_of(" \n") + 1);  // no white space at line ends
    out += row + "\n";
  }
  return out;
}

}  // namespace tandem::io
