#include "base/check.h"

namespace tandem::detail {

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  throw make_error(ErrorKind::internal, fmt::format("{}:{}", file, line), "check '{}' failed: {}",
                   condition, message)
      .hint("this is a bug: please report it with the output of --version -v");
}

}  // namespace tandem::detail
