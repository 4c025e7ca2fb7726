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

/// Insertions, deletions, substitutions and swaps of neighbours from a to b.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j - 1] + (a[i - 1] != b[j - 1]), last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
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

void Problems::hint(std::string text) {
  problems_.back() = std::move(problems_.back()).hint(std::move(text));
}

std::string Problems::place(std::string_view key) const {
  std::string dotted = section_;
  if (!dotted.empty() && !key.empty()) dotted += '.';
  dotted += key;
  const Node* node = tree_.find_path(dotted);
  // One value that stands for a list of one has no items.
  if (node == nullptr && dotted.ends_with(".0"))
    node = tree_.find_path(dotted.substr(0, dotted.size() - 2));
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

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& names) {
  constexpr size_t kNear = 2, kShort = 5, kLongest = 64;
  if (word.empty() || word.size() > kLongest) return {};
  std::string_view best;
  size_t best_distance = kNear + 1;
  for (std::string_view name : names) {
    // Two edits turn a short word into most others: one is all that it may have.
    const size_t distance = edit_distance(word, name), longer = std::max(word.size(), name.size());
    const bool near = distance <= (longer > kShort ? kNear : 1) && distance + 1 < longer;
    if (near && distance < best_distance) best = name, best_distance = distance;
  }
  for (std::string_view name : names) {
    const size_t common = std::min(word.size(), name.size());
    if (best.empty() && common >= 3 && word.substr(0, common) == name.substr(0, common))
      best = name;
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& names) {
  const std::string_view best = nearest(word, names);
  return best.empty() ? std::string{} : fmt::format("did you mean '{}'?", best);
}

}  // namespace tandem::recipe
