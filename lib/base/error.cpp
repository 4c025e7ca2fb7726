#include "base/error.h"

#include <utility>

namespace tandem {

int exit_status(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return 2;
    case ErrorKind::recipe:
      return 3;
    case ErrorKind::input:
      return 4;
    case ErrorKind::memory:
      return 5;
    case ErrorKind::device:
      return 6;
    case ErrorKind::numeric:
      return 7;
    case ErrorKind::interrupted:
      return 130;
    case ErrorKind::internal:
      return 1;
  }
  return 1;
}

Error::Error(ErrorKind kind, std::string where, std::string message)
    : kind_(kind), where_(std::move(where)), message_(std::move(message)) {
  render();
}

Error::Error(const Error& other) = default;
Error::Error(Error&& other) noexcept = default;
Error& Error::operator=(const Error& other) = default;
Error& Error::operator=(Error&& other) noexcept = default;
Error::~Error() = default;

Error formatted_error(ErrorKind kind, std::string where, fmt::string_view text,
                      fmt::format_args args) {
  return {kind, std::move(where), fmt::vformat(text, args)};
}

Error Error::hint(std::string text) && {
  hint_ = std::move(text);
  return std::move(*this);
}

void Error::add_context(std::string text) {
  context_.push_back(std::move(text));
  render();
}

void Error::render() {
  rendered_ = where_.empty() ? message_ : where_ + ": " + message_;
  for (size_t i = 0; i < context_.size(); ++i) rendered_ += (i > 0 ? "; " : " (") + context_[i];
  if (!context_.empty()) rendered_ += ")";
  // what() ends at the first zero byte.
  for (size_t at = 0; (at = rendered_.find('\0', at)) != std::string::npos;)
    rendered_.replace(at, 1, "\\x00");
}

}  // namespace tandem
