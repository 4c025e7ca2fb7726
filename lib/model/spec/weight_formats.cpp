#include "model/spec/weight_formats.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/convert.h"

namespace tandem::model {

WeightFormat stored_as(const ModelConfig& c, MatrixId id, const WeightFormat& numbers) {
  if (!c.formats) return numbers;
  if (id.role == Role::head && c.head.tied) id.role = Role::embedding;
  const auto at = c.formats->coded.find(id);
  return at == c.formats->coded.end() ? numbers : at->second;
}

bool has_codes(const ModelConfig& c, MatrixId id) {
  return std::ranges::any_of(members(id.role), [&](Role of) {
    return is_coded(stored_as(c, {of, id.layer}, DType::f32));
  });
}

std::string formats_text(const ModelConfig& c, DType numbers) {
  if (!c.formats) return dtype_name(numbers);
  std::map<std::string, int> counts;
  for (const auto& [id, format] : c.formats->coded) ++counts[format_name(format)];
  std::vector<std::pair<std::string, int>> order(counts.begin(), counts.end());
  std::ranges::stable_sort(order, std::greater{}, &std::pair<std::string, int>::second);
  std::string text;
  for (const auto& [name, n] : order) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace tandem::model
