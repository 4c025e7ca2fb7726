#include "ops/loading.h"

#include <algorithm>
#include <cstring>

#include "ops/operation.h"

namespace tandem::ops {
namespace {

int blocks_of(int64_t n, int block) { return static_cast<int>((n + block - 1) / block); }

}  // namespace

void convert(void* out, DType to, const void* in, DType from, int64_t n, Stream stream) {
  const ConvertParams p{.out = out, .in = in, .n = n, .from = from, .to = to};
  TANDEM_OPERATION(convert).run(p, blocks_of(n, kConvertBlock),
                                kConvertBlock * int64_t{sizeof(float)}, stream);
}

void clear(float* at, int64_t n, Stream stream) {
  if (stream.handle == nullptr)
    std::fill_n(at, n, 0.0f);
  else
    cuda::clear(at, static_cast<size_t>(n) * sizeof(float), stream);
}

void join_columns(const Tensor& out, const Tensor& parts, Stream stream) {
  const int64_t rows = out.rows(), width = out.row_size(), each = parts.size(2);
  TANDEM_CHECK(parts.size(1) == rows && parts.rows() * each >= width && parts.rank() == 3,
               "{} parts of [{}, {}] do not fit output [{}, {}]", parts.rows(), parts.size(1), each,
               rows, width);
  for (int64_t i = 0; i < parts.rows() && i * each < width; ++i) {
    const auto bytes = static_cast<size_t>(std::min(each, width - i * each)) * sizeof(float);
    float* const to = out.as<float>() + i * each;
    const auto* const from = parts.as<float>() + i * rows * each;
    if (stream.handle != nullptr) {
      cuda::copy_rows(to, static_cast<size_t>(width) * sizeof(float), from,
                      static_cast<size_t>(each) * sizeof(float), bytes, rows, stream);
      continue;
    }
    for (int64_t r = 0; r < rows; ++r) std::memcpy(to + r * width, from + r * each, bytes);
  }
}

void embed(float* out, const void* table, DType from, std::span<const int32_t> ids, int64_t dim) {
  const EmbedParams p{.out = out,
                      .table = table,
                      .ids = ids.data(),
                      .n_rows = static_cast<int>(ids.size()),
                      .dim = static_cast<int>(dim),
                      .from = from};
  TANDEM_OPERATION(embed).run(p, p.n_rows, dim * int64_t{sizeof(float)}, {});
}

void fill_random(void* out, DType to, const RandomPart& part, Stream stream) {
  const FillRandomParams p{.out = out,
                           .seed = part.seed,
                           .tensor = part.tensor,
                           .first = part.first,
                           .count = part.n,
                           .stddev = part.stddev,
                           .to = to};
  TANDEM_OPERATION(fill_random)
      .run(p, blocks_of(part.n, kFillBlock), kFillBlock * int64_t{sizeof(float)}, stream);
}

}  // namespace tandem::ops
