#pragma once
#include "base/error.h"

namespace tandem::detail {

[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& message);

}  // namespace tandem::detail

/// For bugs only: throws an Error of kind internal that names the condition, the file and the line.
#define TANDEM_CHECK(condition, ...)                                                              \
  do {                                                                                            \
    if (!(condition)) [[unlikely]]                                                                \
      ::tandem::detail::check_failed(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
  } while (false)

/// The same in hot paths: absent from release builds.
#ifdef NDEBUG
#define TANDEM_DCHECK(condition, ...) ((void)0)
#else
#define TANDEM_DCHECK(condition, ...) TANDEM_CHECK(condition, __VA_ARGS__)
#endif
