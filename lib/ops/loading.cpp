#include "ops/loading.h"

#include "base/parallel.h"
#include "kernels/cpu_table.h"
#include "kernels/cuda_table.h"
#include "kernels/embed/convert.h"
#include "kernels/embed/embed.h"
#include "kernels/embed/fill_random.h"
#include "tensor/cuda.h"

namespace tandem::ops {
namespace {

// Work items of 4096 elements; a thread takes at least four.
constexpr int kGrainBlocks = 4;

int blocks_of(int64_t n, int block) { return static_cast<int>((n + block - 1) / block); }

FillRandomParams params_of(void* out, DType to, const RandomPart& part) {
  return {.out = out,
          .seed = part.seed,
          .tensor = part.tensor,
          .first = part.first,
          .count = part.n,
          .stddev = part.stddev,
          .to = to};
}

}  // namespace

void convert(void* out, DType to, const void* in, DType from, int64_t n) {
  const ConvertParams p{.out = out, .in = in, .n = n, .from = from, .to = to};
  parallel_ranges(blocks_of(n, kConvertBlock), kGrainBlocks, [&](int begin, int end) {
    cpu_table().convert(p, Range{begin, end});
  });
}

void embed(float* out, const void* table, DType from, std::span<const int32_t> ids, int64_t dim) {
  const EmbedParams p{.out = out,
                      .table = table,
                      .ids = ids.data(),
                      .n_rows = static_cast<int>(ids.size()),
                      .dim = static_cast<int>(dim),
                      .from = from};
  parallel_ranges(p.n_rows, 32, [&](int begin, int end) {
    cpu_table().embed(p, Range{begin, end});
  });
}

void fill_random(void* out, DType to, const RandomPart& part) {
  const FillRandomParams p = params_of(out, to, part);
  parallel_ranges(blocks_of(part.n, kFillBlock), kGrainBlocks, [&](int begin, int end) {
    cpu_table().fill_random(p, Range{begin, end});
  });
}

void fill_random_on_device(void* out, DType to, const RandomPart& part, Stream stream) {
  cuda_table().fill_random(params_of(out, to, part), stream);
  cuda::launched("fill_random", stream);
}

}  // namespace tandem::ops
