#pragma once
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace tandem {

/// The kind of an error, and the exit status that tandem's tools give it.
enum class ErrorKind : uint8_t {
  usage,        // exit 2: the command line, or a call that the object's state does not allow
  recipe,       // exit 3: a recipe, or an unsupported combination
  input,        // exit 4: model, tokenizer, data or prompt missing or malformed
  memory,       // exit 5: not enough, found or predicted
  device,       // exit 6: a device or CPU feature is missing
  numeric,      // exit 7: non-finite value, mismatch with a reference
  interrupted,  // exit 130 or 143
  internal,     // exit 1: a bug
};

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

  /// Sets the remedy: `throw Error(...).hint("set only one of them")`.
  Error hint(std::string text) &&;

  /// Adds an outer context such as "while loading layer 12".
  void add_context(std::string text);

  ErrorKind kind() const { return kind_; }
  const std::string& where() const { return where_; }
  const std::string& message() const { return message_; }
  /// Returns the remedy, or an empty text. It is not part of what().
  const std::string& hint_text() const { return hint_; }

  /// `where: message (context; outer context)`, without the hint.
  const char* what() const noexcept override { return rendered_.c_str(); }

 private:
  void render();

  ErrorKind kind_;
  std::string where_, message_, hint_, rendered_;
  std::vector<std::string> context_;
};

}  // namespace tandem
