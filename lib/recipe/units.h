#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::recipe {

/// Field types whose text carries a unit; each converts to its plain number.
struct ByteSize {  // `512MiB`, `24GiB`, `16GB`; the suffix is required
  int64_t value = 0;
  operator int64_t() const { return value; }
};

struct TokenCount {  // `4096`, `96Ki`, `1Mi`; a bare k is refused, for it means two things
  int64_t value = 0;
  operator int64_t() const { return value; }
};

struct Fraction {  // `0.25` or `25%`
  double value = 0.0;
  operator double() const { return value; }
};

struct Duration {  // `250ms`, `10s`, `5min`; the suffix is required
  double seconds = 0.0;
  operator double() const { return seconds; }
};

/// Read a value from its text. On failure returns the problem, to follow "expected ..., found ...";
/// on success it is empty and `out` is set.
std::string parse_units(std::string_view text, int64_t& out);
std::string parse_units(std::string_view text, double& out);
std::string parse_units(std::string_view text, ByteSize& out);
std::string parse_units(std::string_view text, TokenCount& out);
std::string parse_units(std::string_view text, Fraction& out);
std::string parse_units(std::string_view text, Duration& out);

/// The shortest text that reads back as the same value.
std::string units_text(ByteSize size);
std::string units_text(TokenCount count);
std::string units_text(Fraction fraction);
std::string units_text(Duration duration);

}  // namespace tandem::recipe
