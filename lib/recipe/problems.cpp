#include "recipe/problems.h"

#include <string.h>  // strverscmp is not in <cstring>

#include <algorithm>
#include <numeric>
#include <utility>

namespace tandem::recipe {
namespace {

constexpr size_t kMaxProblems = 20;

std::string joined(const std::vector<Error>& problems) {
  std::string text;
  for (const Error& problem : problems) {
    if (!text.empty()) text += '\n';
    text += problem.what();
  }
  return text;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({substitution, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

InvalidRecipe::InvalidRecipe(std::vector<Error> problems)
    : Error(ErrorKind::recipe, "", joined(problems)), problems_(std::move(problems)) {}

void Problems::add(Error problem) {
  if (problems_.size() < kMaxProblems) problems_.push_back(std::move(problem));
}

void Problems::add_formatted(std::string_view key, fmt::string_view text, fmt::format_args args) {
  const std::string where = place(key);
  std::string what = fmt::vformat(text, args);
  // A text names the key, for places that are lines of a file.
  if (what.starts_with(where + ": ")) what.erase(0, where.size() + 2);
  add(Error(ErrorKind::recipe, where, std::move(what)));
}

std::string Problems::place(std::string_view key) const {
  std::string dotted = section_;
  if (!dotted.empty() && !key.empty()) dotted += '.';
  dotted += key;
  const Node* node = tree_.find_path(dotted);
  const std::string where = node != nullptr ? node->origin.text() : std::string{};
  return where.empty() ? dotted : where;
}

void Problems::raise() const {
  if (problems_.empty()) return;
  std::vector<Error> sorted = problems_;
  // In the order of the source: strverscmp compares line numbers as numbers.
  std::ranges::stable_sort(sorted, [](const Error& a, const Error& b) {
    return ::strverscmp(a.where().c_str(), b.where().c_str()) < 0;
  });
  throw InvalidRecipe(std::move(sorted));
}

std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& names) {
  constexpr size_t kNear = 2, kLongest = 64;
  if (word.empty() || word.size() > kLongest) return {};
  std::string_view best;
  size_t best_distance = kNear + 1;
  for (std::string_view name : names) {
    // Two edits turn any two-letter word into any other: short words must share more.
    const size_t distance = edit_distance(word, name);
    const bool near = distance <= kNear && distance < std::max(word.size(), name.size()) - 1;
    if (near && distance < best_distance) best = name, best_distance = distance;
  }
  for (std::string_view name : names) {
    const size_t common = std::min(word.size(), name.size());
    if (best.empty() && common >= 3 && word.substr(0, common) == name.substr(0, common))
      best = name;
  }
  return best.empty() ? std::string{} : fmt::format("did you mean '{}'?", best);
}

}  // namespace tandem::recipe
