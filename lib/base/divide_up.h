#pragma once
#include <cstdint>

namespace tandem {

/// n / by, rounded up; n >= 0, by > 0.
constexpr int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

}  // namespace tandem
