#pragma once
#include <optional>
#include <string>

namespace tandem::cli {

/// Lines that a user types at a terminal.
class LineReader {
 public:
  virtual ~LineReader() = default;

  /// Shows the prompt and reads a line, which may hold several that were pasted, without its end.
  /// None at the end of the input, and as soon as interrupted() is set.
  virtual std::optional<std::string> read(const std::string& prompt) = 0;
};

}  // namespace tandem::cli
