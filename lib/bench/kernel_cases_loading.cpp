// convert and fill_random: what loading a checkpoint or making a synthetic model costs.
#include "bench/kernel_data.h"
#include "kernels/embed/convert.h"
#include "kernels/embed/fill_random.h"
#include "ops/loading.h"

namespace tandem::bench {
namespace {

PreparedCase prepare_convert(int64_t n, DType from, DType to) {
  // Bits of bf16 numbers are numbers in f16 as well.
  const auto in = OwnedTensor::random(from == DType::f32 ? from : DType::bf16, {n}, 0);
  const OwnedTensor got(to, {n}), want(to, {n});
  return {.run = [=] { ops::convert(got.raw(), to, in.raw(), from, n); },
          .mismatch =
              [=] {
                const auto blocks = static_cast<int>((n + kConvertBlock - 1) / kConvertBlock);
                convert_ref({.out = want.raw(), .in = in.raw(), .n = n, .from = from, .to = to},
                            {0, blocks});
                return find_mismatch(got, want, 0, 0);
              }};
}

PreparedCase prepare_fill(int64_t n, DType to) {
  const OwnedTensor got(to, {n}), want(to, {n});
  return {.run =
              [=] {
                ops::fill_random(got.raw(), to, {.seed = 1, .tensor = 2, .n = n, .stddev = 0.02f});
              },
          .mismatch =
              [=] {
                const auto blocks = static_cast<int>((n + kFillBlock - 1) / kFillBlock);
                fill_random_ref({.out = want.raw(),
                                 .seed = 1,
                                 .tensor = 2,
                                 .first = 0,
                                 .count = n,
                                 .stddev = 0.02f,
                                 .to = to},
                                {0, blocks});
                return find_mismatch(got, want, 0, 0);
              }};
}

KernelCase one_case(std::string name, int64_t n, DType dtype, size_t bytes_each,
                    std::function<PreparedCase()> prepare) {
  const auto bytes = static_cast<size_t>(n) * bytes_each;
  return {.family = "loading",
          .name = std::move(name),
          .shape = std::to_string(n),
          .dtype = dtype,
          .work = {.bytes = static_cast<double>(bytes)},
          .memory_bytes = 2 * bytes,
          .prepare = std::move(prepare)};
}

}  // namespace

KernelCases loading_cases(const KernelShapes& s) {
  const int64_t n = int64_t{s.dim} * s.dim;
  KernelCases cases;
  for (const auto& [from, to] :
       {std::pair{DType::f16, DType::bf16}, {DType::f32, DType::bf16}, {DType::bf16, DType::f32}})
    cases.push_back(one_case(fmt::format("convert {} to {}", dtype_name(from), dtype_name(to)), n,
                             to, dtype_bytes(from) + dtype_bytes(to),
                             [n, from = from, to = to] { return prepare_convert(n, from, to); }));
  for (const DType to : {DType::bf16, DType::f32})
    cases.push_back(
        one_case("fill_random", n, to, dtype_bytes(to), [=] { return prepare_fill(n, to); }));
  return cases;
}

}  // namespace tandem::bench
