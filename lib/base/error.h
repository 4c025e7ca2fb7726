#pragma once
#include <fmt/core.h>

#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace tandem {

/// What went wrong, from the user's point of view; decides the exit status of a tool.
enum class ErrorKind : uint8_t {
  usage,        // exit 2: the command line
  recipe,       // exit 3: a recipe, or an unsupported combination
  input,        // exit 4: model, tokenizer, data or prompt missing or malformed
  memory,       // exit 5: not enough, found or predicted
  device,       // exit 6: a device or CPU feature is missing
  numeric,      // exit 7: non-finite value, mismatch with a reference
  interrupted,  // exit 130 or 143
  internal,     // exit 1: a bug
};

int exit_status(ErrorKind kind);

/// The one exception type of the library. Reads `where: message`, with an optional hint that names
/// the remedy and a chain of contexts that callers add on the way up.
class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string where, std::string message);
  // Defined in one unit, not in each that throws.
  Error(const Error& other);
  Error(Error&& other) noexcept;
  Error& operator=(const Error& other);
  Error& operator=(Error&& other) noexcept;
  ~Error() override;

  /// `throw Error::make(ErrorKind::input, path, "tensor '{}' is missing", name).hint("...")`
  template <class... Args>
  static Error make(ErrorKind kind, std::string where, fmt::format_string<Args...> text,
                    Args&&... args) {
    return formatted(kind, std::move(where), text, fmt::make_format_args(args...));
  }
  static Error formatted(ErrorKind kind, std::string where, fmt::string_view text,
                         fmt::format_args args);

  Error hint(std::string text) &&;

  /// Adds an outer context such as "while loading layer 12".
  void add_context(std::string text);

  ErrorKind kind() const { return kind_; }
  const std::string& where() const { return where_; }
  const std::string& message() const { return message_; }
  const std::string& hint_text() const { return hint_; }

  /// `where: message (context; outer context)`, without the hint.
  const char* what() const noexcept override { return rendered_.c_str(); }

 private:
  void render();

  ErrorKind kind_;
  std::string where_, message_, hint_, rendered_;
  std::vector<std::string> context_;
};

template <class... Args>
Error input_error(std::string where, fmt::format_string<Args...> text, Args&&... args) {
  return Error::formatted(ErrorKind::input, std::move(where), text, fmt::make_format_args(args...));
}

template <class... Args>
Error recipe_error(std::string where, fmt::format_string<Args...> text, Args&&... args) {
  return Error::formatted(ErrorKind::recipe, std::move(where), text,
                          fmt::make_format_args(args...));
}

template <class... Args>
Error usage_error(std::string where, fmt::format_string<Args...> text, Args&&... args) {
  return Error::formatted(ErrorKind::usage, std::move(where), text, fmt::make_format_args(args...));
}

/// Runs `body`; an error of kind input that it throws, and that names no remedy, gets this one.
template <class Body>
auto with_remedy(const char* remedy, const Body& body) {
  try {
    return body();
  } catch (Error& e) {
    if (e.kind() != ErrorKind::input || !e.hint_text().empty()) throw;
    throw std::move(e).hint(remedy);
  }
}

}  // namespace tandem
