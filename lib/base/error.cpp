#include "base/error.h"

namespace tandem {

int exit_status(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage: return 2;
    case ErrorKind::recipe: return 3;
    case ErrorKind::input: return 4;
    case ErrorKind::memory: return 5;
    case ErrorKind::device: return 6;
    case ErrorKind::numeric: return 7;
    case ErrorKind::interrupted: return 130;
    case ErrorKind::internal: return 1;
  }
  return 1;
}

void Error::render() {
  rendered_ = where_.empty() ? message_ : where_ + ": " + message_;
  if (context_.empty()) return;
  rendered_ += " (";
  for (size_t i = 0; i < context_.size(); ++i) {
    if (i > 0) rendered_ += "; ";
    rendered_ += context_[i];
  }
  rendered_ += ")";
}

}  // namespace tandem
