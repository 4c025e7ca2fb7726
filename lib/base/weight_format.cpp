#include "base/weight_format.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/check.h"
#include "base/convert.h"
#include "base/two_level.h"

namespace tandem {
namespace {

struct CodeInfo {
  std::string_view name;
  DType widens_to;
};

// By Code; the plain numbers come first, in their own types.
constexpr std::array kCodes = {CodeInfo{"f32", DType::f32}, CodeInfo{"bf16", DType::bf16},
                               CodeInfo{"f16", DType::f16}, CodeInfo{"i4", DType::bf16},
                               CodeInfo{"i8", DType::bf16}, CodeInfo{"fp8", DType::bf16},
                               CodeInfo{"i5", DType::bf16}, CodeInfo{"i6", DType::bf16}};
constexpr std::array<std::string_view, 5> kScales = {"", " f16", " bf16", " f32", " two-level"};
constexpr std::array<std::string_view, 3> kZeros = {"", " integer", " minimum"};

const CodeInfo& info(const WeightFormat& f) { return kCodes[static_cast<size_t>(f.code)]; }

Code code_of(DType numbers) {
  const auto row = std::ranges::find(kCodes, numbers, &CodeInfo::widens_to);
  TANDEM_CHECK(row != kCodes.end(), "weights cannot be numbers of type {}",
               static_cast<int>(numbers));
  return static_cast<Code>(row - kCodes.begin());
}

}  // namespace

WeightFormat::WeightFormat(DType numbers) : code(code_of(numbers)) {}

std::string format_name(const WeightFormat& f) {
  std::string name(info(f).name);
  if (f.group > 0) name += fmt::format(" g{}", f.group);
  name += kScales[static_cast<size_t>(f.scale)];
  return name += kZeros[static_cast<size_t>(f.zero)];
}

DType numbers_of(const WeightFormat& f) {
  TANDEM_CHECK(f == WeightFormat(info(f).widens_to), "weights in {} are not plain numbers",
               format_name(f));
  return info(f).widens_to;
}

DType widens_to(const WeightFormat& f) { return info(f).widens_to; }

size_t scale_bytes(const WeightFormat& f) {
  if (!is_coded(f)) return 0;
  const size_t scale = f.scale == ScaleType::f32 ? sizeof(float) : sizeof(f16);
  return scale + (f.zero == Zero::none ? 0 : f.zero == Zero::minimum ? scale : sizeof(uint8_t));
}

int64_t cut_unit(const WeightFormat& f, int64_t in) {
  if (!is_coded(f)) return 1;
  if (f.scale == ScaleType::two_level) return kTwoLevelInputs;
  return f.group > 0 ? f.group : std::max<int64_t>(1, in);
}

size_t row_bytes(const WeightFormat& f, int64_t in) {
  if (!is_coded(f)) return static_cast<size_t>(in) * dtype_bytes(numbers_of(f));
  const int64_t group = cut_unit(f, in), n = (in + group - 1) / group;
  if (f.scale == ScaleType::two_level)
    return static_cast<size_t>(n * TwoLevelBlock{f.code, f.zero, f.group}.bytes());
  const auto codes = static_cast<size_t>(CodeBits{f.code, static_cast<int>(group)}.bytes());
  return static_cast<size_t>(n) * (codes + scale_bytes(f));
}

size_t matrix_bytes(const WeightFormat& f, int64_t out, int64_t in) {
  return static_cast<size_t>(out) * row_bytes(f, in);
}

}  // namespace tandem
