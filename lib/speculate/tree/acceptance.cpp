#include "speculate/tree/acceptance.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "base/sha256.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"
#include "recipe/scalar.h"

namespace tandem::speculate {
namespace {

constexpr const char* kAcceptanceFormat = "acceptance-vector/1";
constexpr size_t kMostAcceptanceBytes = size_t{16} << 20;
// Sums of up to some hundred frequencies kept in float32, and of decimals rounded to four digits.
constexpr double kSumTolerance = 1e-6, kResidualTolerance = 1e-3;

std::vector<double> numbers_of(const io::Json& list, const std::string& name,
                               const std::string& where) {
  if (!list.is_array())
    throw input_error(where, "{}: expected an array of probabilities, found {}", name,
                      io::describe(list));
  std::vector<double> numbers;
  for (const io::Json& item : list) {
    if (!item.is_number())
      throw input_error(where, "{}[{}]: expected a probability, found {}", name, numbers.size(),
                        io::describe(item));
    numbers.push_back(item.get<double>());
  }
  return numbers;
}

void check_row(const std::vector<double>& row, const std::string& name, const std::string& where) {
  if (row.empty())
    throw input_error(where, "{} is empty, expected the acceptance probability of each child",
                      name);
  for (size_t k = 0; k < row.size(); ++k)
    if (!(row[k] >= 0 && row[k] <= 1))
      throw input_error(where, "{}[{}] is {}, expected a probability from 0 to 1", name, k, row[k])
          .hint("entry k is the share of all steps that accept the k-th child");
  const double sum = std::accumulate(row.begin(), row.end(), 0.0);
  if (sum > 1 + kSumTolerance)
    throw input_error(where, "{} sums to {:.9g}, expected at most 1", name, sum)
        .hint(
            "give shares of all steps, not conditional on earlier rejections, and no residual: at "
            "most one child is accepted a step");
}

/// Takes what is not a probability of a child off a bare array.
std::vector<double> without_padding(std::vector<double> p, VectorLayout layout,
                                    const std::string& where) {
  if (layout == VectorLayout::plain) return p;
  const size_t extra = layout == VectorLayout::padded ? 1 : 2;
  const std::string name = recipe::yaml_text(layout);
  if (p.size() <= extra)
    throw input_error(
        where, "layout {} needs {} entries in addition to the probabilities, found {} in total",
        name, extra, p.size());
  if (p.front() != 0)
    throw input_error(where, "layout {} must begin with 0, found {}", name, p.front())
        .hint("choose layout plain if the first entry is the first child's probability");
  if (const double sum = std::accumulate(p.begin(), p.end(), 0.0);
      layout == VectorLayout::padded_residual && std::abs(sum - 1) > kResidualTolerance)
    throw input_error(where, "layout {} ends with the residual and must sum to 1, found {:.6g}",
                      name, sum)
        .hint("choose layout padded if the file ends with the last child's probability");
  p.erase(p.begin());
  if (layout == VectorLayout::padded_residual) p.pop_back();
  return p;
}

AcceptanceVector from_object(const io::Json& json, const std::string& where) {
  const std::string& format = io::get_string(json, "format", where);
  if (format != kAcceptanceFormat)
    throw input_error(where, "expected format '{}', found {}", kAcceptanceFormat,
                      io::quote(format));
  AcceptanceVector v;
  v.method = io::get_string(json, "method", where);
  const auto add_row = [&](const io::Json& list, const std::string& name) {
    v.rows.push_back(numbers_of(list, name, where));
    check_row(v.rows.back(), name, where);
  };
  if (const io::Json* rows = io::find_array(json, "rows", where)) {
    if (rows->empty()) throw input_error(where, "rows is empty, expected one list for each depth");
    for (const io::Json& row : *rows) add_row(row, fmt::format("rows[{}]", v.rows.size()));
  } else {
    add_row(io::get_array(json, "p", where), "p");
  }
  return v;
}

/// The vector of records of magicdec-acceptance that have one, not more.
io::Json vector_of_records(std::string_view text, const std::string& where) {
  std::vector<io::Json> found;
  std::string names;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty()) continue;
    const io::Json record = io::parse_json(line, where);
    const io::Json::json_pointer at("/acceptance/vector");
    if (!record.contains(at)) continue;
    found.push_back(record.at(at));
    names += fmt::format("{}'{}'", found.size() > 1 ? ", " : "",
                         record.value("/workload/phase"_json_pointer, std::string()));
  }
  if (found.size() != 1)
    throw input_error(where, "expected one record with an acceptance vector, found {}{}{}",
                      found.size(), found.empty() ? "" : ": ", names)
        .hint(found.empty() ? "measure it with accept.width above 0"
                            : "copy the line of one of them to a separate file");
  return found.front();
}

}  // namespace

const std::vector<double>& AcceptanceVector::row(int depth) const {
  return rows[std::min(static_cast<size_t>(depth), rows.size() - 1)];
}

AcceptanceVector AcceptanceVector::first_children(int max_branch) const {
  AcceptanceVector v = *this;
  for (auto& row : v.rows) row.resize(std::min(row.size(), static_cast<size_t>(max_branch)));
  return v;
}

bool AcceptanceVector::non_increasing() const {
  return std::ranges::all_of(
      rows, [](const auto& row) { return std::ranges::is_sorted(row, std::greater<>()); });
}

AcceptanceVector parse_acceptance(std::string_view text, const std::string& where,
                                  std::optional<VectorLayout> layout) {
  const bool is_records = text.starts_with(R"({"schema":"tandem.result/)");
  const io::Json json = is_records ? vector_of_records(text, where) : io::parse_json(text, where);
  AcceptanceVector v;
  if (json.is_array()) {
    if (!layout)
      throw input_error(where, "is an array without a layout")
          .hint(
              "set -s accept.layout to plain, padded (0 first) or padded_residual (0 first, "
              "residual last)");
    v.rows = {without_padding(numbers_of(json, "p", where), *layout, where)};
    check_row(v.rows[0], "p", where);
  } else if (json.is_object()) {
    if (layout)
      throw input_error(where, "is an object, but accept.layout is only for plain arrays")
          .hint("remove accept.layout");
    v = from_object(json, where);
  } else {
    throw input_error(where, "expected an object of format '{}', found {}", kAcceptanceFormat,
                      io::describe(json));
  }
  v.file = where;
  v.sha256 = sha256_hex(text);
  return v;
}

AcceptanceVector read_acceptance(const std::filesystem::path& path,
                                 std::optional<VectorLayout> layout) {
  return parse_acceptance(io::read_file(path, kMostAcceptanceBytes), path.string(), layout);
}

}  // namespace tandem::speculate
