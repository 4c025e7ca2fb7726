#include "recipe/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace tandem::recipe {
namespace {

struct Unit {
  std::string_view suffix;
  double factor;
};

constexpr std::array kByteUnits = {Unit{"TiB", 0x1p40}, Unit{"GiB", 0x1p30}, Unit{"MiB", 0x1p20},
                                   Unit{"KiB", 0x1p10}, Unit{"TB", 1e12},    Unit{"GB", 1e9},
                                   Unit{"MB", 1e6},     Unit{"kB", 1e3},     Unit{"B", 1.0}};
constexpr std::array kTimeUnits = {Unit{"us", 1e-6}, Unit{"ms", 1e-3}, Unit{"min", 60.0},
                                   Unit{"h", 3600.0}, Unit{"s", 1.0}};
/// Integers up to here are exact in a double, and safe to multiply and convert.
constexpr double kLargest = 0x1p53;

bool remove_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

template <class T>
bool parse_number(std::string_view text, T& out) {
  if (text.starts_with('+')) {
    text.remove_prefix(1);
    if (text.starts_with('-')) return false;
  }
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), out);
  return failed == std::errc{} && end == text.data() + text.size();
}

/// An exact multiple of a binary unit, else the plain count.
std::string binary_text(int64_t value, std::string_view plain_suffix, std::string_view suffix_end) {
  constexpr std::array<std::string_view, 4> kPrefixes = {"Ki", "Mi", "Gi", "Ti"};
  size_t power = 0;
  while (power < kPrefixes.size() && value != 0 && value % 1024 == 0) value /= 1024, ++power;
  if (power == 0) return fmt::format("{}{}", value, plain_suffix);
  return fmt::format("{}{}{}", value, kPrefixes[power - 1], suffix_end);
}

}  // namespace

std::string parse_units(std::string_view text, int64_t& out) {
  int64_t value = 0;
  if (!parse_number(text, value)) return "an integer";
  out = value;
  return {};
}

std::string parse_units(std::string_view text, double& out) {
  double value = 0;
  if (!parse_number(text, value) || !std::isfinite(value)) return "a number";
  out = value;
  return {};
}

std::string parse_units(std::string_view text, ByteSize& out) {
  constexpr auto kExpected = "a byte size with its unit, such as 512MiB or 24GB";
  for (const Unit& unit : kByteUnits) {
    if (!remove_suffix(text, unit.suffix)) continue;
    double value = 0;
    if (!parse_number(text, value)) return kExpected;
    value *= unit.factor;
    if (!(std::fabs(value) < kLargest)) return "a byte size below 8192TiB";
    out.value = std::llround(value);
    return {};
  }
  return kExpected;
}

std::string parse_units(std::string_view text, TokenCount& out) {
  double factor = 1;
  if (remove_suffix(text, "Ki"))
    factor = 0x1p10;
  else if (remove_suffix(text, "Mi"))
    factor = 0x1p20;
  else if (!text.empty() && (text.back() == 'k' || text.back() == 'K'))
    return "a count such as 4096 or 4Ki (a bare k could mean 1000 or 1024)";
  int64_t value = 0;
  if (!parse_number(text, value)) return "a count such as 4096, 96Ki or 1Mi";
  const double scaled = static_cast<double>(value) * factor;
  if (!(std::fabs(scaled) < kLargest)) return "a count below 2^53";
  out.value = static_cast<int64_t>(scaled);
  return {};
}

std::string parse_units(std::string_view text, Fraction& out) {
  const bool percent = remove_suffix(text, "%");
  double value = 0;
  if (!parse_number(text, value) || !std::isfinite(value)) return "a fraction such as 0.25 or 25%";
  out.value = percent ? value / 100 : value;
  return {};
}

std::string parse_units(std::string_view text, Duration& out) {
  constexpr auto kExpected = "a time with its unit, such as 250ms, 10s or 5min";
  for (const Unit& unit : kTimeUnits) {
    if (!remove_suffix(text, unit.suffix)) continue;
    double value = 0;
    if (!parse_number(text, value) || !std::isfinite(value * unit.factor)) return kExpected;
    out.seconds = value * unit.factor;
    return {};
  }
  return kExpected;
}

std::string units_text(ByteSize size) { return binary_text(size.value, "B", "B"); }
std::string units_text(TokenCount count) { return fmt::format("{}", count.value); }
std::string units_text(Fraction fraction) { return fmt::format("{}", fraction.value); }
std::string units_text(Duration duration) { return fmt::format("{}s", duration.seconds); }

}  // namespace tandem::recipe
