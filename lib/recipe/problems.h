#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "recipe/node.h"

namespace tandem::recipe {

/// All problems of one recipe, reported together; what() has one line for each.
class InvalidRecipe : public Error {
 public:
  explicit InvalidRecipe(std::vector<Error> problems);
  const std::vector<Error>& problems() const { return problems_; }

 private:
  std::vector<Error> problems_;
};

/// Collects the problems of a recipe.
class Problems {
 public:
  explicit Problems(const Node& tree) : tree_(tree) {}

  void add(Error problem);

  /// For check() of a struct: a rule about the field `key` of that struct is broken.
  template <class... Args>
  void field(std::string_view key, fmt::format_string<Args...> text, Args&&... args) {
    add_formatted(key, text, fmt::make_format_args(args...));
  }
  /// Says how to mend the last problem.
  void hint(std::string text);
  void add_formatted(std::string_view key, fmt::string_view text, fmt::format_args args);

  /// Position of a field of the current section; its dotted key if it was never written.
  std::string place(std::string_view key) const;
  void set_section(std::string dotted) { section_ = std::move(dotted); }

  bool empty() const { return problems_.empty(); }
  /// errors   throws InvalidRecipe if there is any problem
  void raise() const;

 private:
  const Node& tree_;
  std::string section_;
  std::vector<Error> problems_;
};

/// The name that `word` was probably meant to be: one edit away, two where the longer of both has
/// more than five letters, or one is the start of the other. Empty if there is none.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& names);

/// "did you mean 'x'?" for the nearest name, empty if there is none.
std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& names);

}  // namespace tandem::recipe
