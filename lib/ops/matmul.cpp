#include "ops/matmul.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/cpu_features.h"
#include "base/parallel.h"
#include "ops/linear_device.h"
#include "ops/loading.h"
#include "ops/matmul_cuda.h"
#include "ops/onednn.h"

namespace tandem::ops {
namespace {

using dnnl::memory;

/// Whether oneDNN multiplies numbers of a type as they are; else they are widened to f32 before.
bool multiplies(DType dtype) { return dtype == DType::f32 || isa_in_use() >= Isa::avx512_bf16; }

/// Bytes of the buffers' ends and of oneDNN's scratchpad, about.
constexpr size_t kSlack = size_t{1} << 20;
/// Primitives that are kept: those of a micro-batch or two, each with some 200 KiB of generated
/// code.
constexpr size_t kMostPrimitives = 48;

/// oneDNN adds to bf16 matrices by way of f32 ones, two of the result's size, which are kept this
/// small.
constexpr size_t kSumBytes = size_t{8} << 20;

/// A matrix's place in a product: the strides of its two dimensions.
struct Layout {
  int64_t rows, cols, row_stride, col_stride;
  DType type;
  auto operator<=>(const Layout&) const = default;

  memory::desc describe() const {
    return {{rows, cols}, onednn::type_of(type), {row_stride, col_stride}};
  }
};

Layout layout_of(const MatrixView& m, bool transposed) {
  if (transposed) return {m.cols, m.rows, 1, m.stride, m.dtype};
  return {m.rows, m.cols, m.stride, 1, m.dtype};
}

struct Product {
  Layout c, a, b;
  float scale;
  bool accumulate;
  auto operator<=>(const Product&) const = default;

  dnnl::matmul::primitive_desc describe() const {
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    dnnl::post_ops ops;
    if (scale != 1) ops.append_eltwise(1.0f, dnnl::algorithm::eltwise_linear, scale, 0.0f);
    if (accumulate) ops.append_sum(1.0f);
    attr.set_post_ops(ops);
    return {dnnl::matmul::desc(a.describe(), b.describe(), c.describe()), attr, onednn::engine()};
  }
};

struct Primitive {
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul run;
};

const Primitive& primitive(std::map<Product, Primitive>& made, const Product& p) {
  if (const auto it = made.find(p); it != made.end()) return it->second;
  const dnnl::matmul::primitive_desc pd = p.describe();
  return made.emplace(p, Primitive{pd, dnnl::matmul(pd)}).first->second;
}

/// Cuts one dimension of a result into parts, in steps that the kernels' blocks divide.
int64_t part_size(int64_t n, int64_t parts) {
  constexpr int64_t kBlock = 64;
  return (n + parts * kBlock - 1) / (parts * kBlock) * kBlock;
}

/// Copies a matrix row by row into another of its shape, in the other's type.
void copy(const MatrixView& to, const MatrixView& from) {
  const auto row = [](const MatrixView& m, int64_t r) {
    return static_cast<char*>(m.data) + static_cast<size_t>(r * m.stride) * dtype_bytes(m.dtype);
  };
  if (to.stride == to.cols && from.stride == from.cols)
    return convert(to.data, to.dtype, from.data, from.dtype, to.rows * to.cols);
  for (int64_t r = 0; r < to.rows; ++r)
    convert(row(to, r), to.dtype, row(from, r), from.dtype, to.cols);
}

/// The part of a workspace that is not taken yet.
class Workspace {
 public:
  explicit Workspace(std::span<std::byte> memory) : rest_(memory) {}

  MatrixView wide(const MatrixView& m) {
    const std::span<std::byte> mine = take(static_cast<size_t>(m.rows * m.cols) * sizeof(float));
    TANDEM_CHECK(!mine.empty(), "matmul: the workspace is too small for [{}, {}]", m.rows, m.cols);
    return {mine.data(), DType::f32, m.rows, m.cols};
  }
  /// Empty if there is too little.
  std::span<std::byte> take(size_t bytes) {
    constexpr size_t kAlign = 64;
    const size_t taken = (bytes + kAlign - 1) / kAlign * kAlign;
    if (taken > rest_.size()) return {};
    const std::span<std::byte> mine = rest_.first(taken);
    rest_ = rest_.subspan(taken);
    return mine;
  }

 private:
  std::span<std::byte> rest_;
};

/// Cuts the result into tiles, two for each thread, and multiplies each as a separate product.
void multiply(const MatmulArgs& args, Workspace left) {
  static std::map<Product, Primitive> made;
  if (made.size() >= kMostPrimitives) made.clear();
  const Layout c = layout_of(args.c, false), a = layout_of(args.a, args.a_transposed),
               b = layout_of(args.b, args.b_transposed);
  const int threads = max_threads();
  const int64_t tasks = threads == 1 ? 1 : int64_t{2} * threads;
  // Nearly square: each tile reads rows of a and columns of b, which others read too.
  const auto down = static_cast<int64_t>(
      std::ceil(std::sqrt(static_cast<double>(tasks * c.rows) / static_cast<double>(c.cols))));
  const int64_t rows_each = part_size(c.rows, std::clamp<int64_t>(down, 1, tasks));
  const int64_t n_down = (c.rows + rows_each - 1) / rows_each;
  const int64_t cols_each = part_size(c.cols, (tasks + n_down - 1) / n_down);
  const int64_t n_across = (c.cols + cols_each - 1) / cols_each;
  struct Tile {
    int64_t row, col;
    const Primitive* product;
  };
  std::vector<Tile> tiles;
  {
    const onednn::Threads one(1);
    for (int64_t row = 0; row < c.rows; row += rows_each)
      for (int64_t col = 0; col < c.cols; col += cols_each) {
        Product p{c, a, b, args.scale, args.accumulate};
        p.c.rows = p.a.rows = std::min(rows_each, c.rows - row);
        p.c.cols = p.b.cols = std::min(cols_each, c.cols - col);
        tiles.push_back({row, col, &primitive(made, p)});
      }
  }
  size_t scratch_bytes = 0;
  for (const Tile& tile : tiles)
    scratch_bytes = std::max(scratch_bytes, tile.product->desc.scratchpad_desc().get_size());
  scratch_bytes = (scratch_bytes + 63) / 64 * 64;
  const std::span<std::byte> scratch = left.take(scratch_bytes * static_cast<size_t>(threads));
  const auto at = [](const MatrixView& m, const Layout& l, int64_t row, int64_t col) {
    return static_cast<char*>(m.data) +
           static_cast<size_t>(row * l.row_stride + col * l.col_stride) * dtype_bytes(m.dtype);
  };
  parallel_for(static_cast<int>(n_down * n_across), threads, [&](int i, int thread) {
    const onednn::Threads one(1);
    const auto& [row, col, product] = tiles[static_cast<size_t>(i)];
    const auto& pd = product->desc;
    const memory::desc needs = pd.scratchpad_desc();
    product->run.execute(
        onednn::stream(),
        {{DNNL_ARG_SRC, memory(pd.src_desc(), onednn::engine(), at(args.a, a, row, 0))},
         {DNNL_ARG_WEIGHTS, memory(pd.weights_desc(), onednn::engine(), at(args.b, b, 0, col))},
         {DNNL_ARG_DST, memory(pd.dst_desc(), onednn::engine(), at(args.c, c, row, col))},
         {DNNL_ARG_SCRATCHPAD,
          scratch.empty() ? memory(needs, onednn::engine())
                          : memory(needs, onednn::engine(),
                                   scratch.data() + static_cast<size_t>(thread) * scratch_bytes)}});
  });
}

/// As many rows at a time as there is room for such sums.
void multiply_rows(const MatmulArgs& args, const Workspace& left) {
  const int64_t fit = static_cast<int64_t>(kSumBytes) / (2 * int64_t{sizeof(float)} * args.c.cols);
  const int64_t most = std::max<int64_t>(16, fit / 16 * 16);
  if (args.c.dtype == DType::f32 || !args.accumulate || args.a_transposed || args.c.rows <= most)
    return multiply(args, left);
  for (int64_t first = 0; first < args.c.rows; first += most) {
    const int64_t n = std::min(most, args.c.rows - first);
    MatmulArgs part = args;
    part.c = args.c.slice(first, n);
    part.a = args.a.slice(first, n);
    multiply(part, left);
  }
}

}  // namespace

size_t matmul_workspace_bytes(DType dtype, int64_t elements, Device device, bool adds) {
  if (device.kind == Device::Kind::cuda) return linear_cuda::kWorkspaceBytes;
  return kSlack + (adds ? kSumBytes : 0) +
         (multiplies(dtype) ? 0 : static_cast<size_t>(elements) * sizeof(float));
}

void matmul(const MatmulArgs& args, std::span<std::byte> workspace, Stream stream) {
  const Layout a = layout_of(args.a, args.a_transposed), b = layout_of(args.b, args.b_transposed);
  TANDEM_CHECK(
      args.c.rows == a.rows && args.c.cols == b.cols && a.cols == b.rows && a.type == b.type,
      "matmul: output [{}, {}] does not fit operands [{}, {}] and [{}, {}]", args.c.rows,
      args.c.cols, a.rows, a.cols, b.rows, b.cols);
  TANDEM_CHECK(args.scale == 1 || !args.accumulate,
               "matmul: accumulation with scale {} is not supported", args.scale);
  if (args.c.rows == 0 || args.c.cols == 0) return;
  if (stream.handle != nullptr) return matmul_cuda::run(args, workspace, stream);
  Workspace left(workspace);
  MatmulArgs wide = args;
  if (!multiplies(a.type)) {
    copy(wide.a = left.wide(args.a), args.a);
    copy(wide.b = left.wide(args.b), args.b);
    if (args.c.dtype != DType::f32) {
      wide.c = left.wide(args.c);
      if (args.accumulate) copy(wide.c, args.c);
    }
  }
  multiply_rows(wide, left);
  if (wide.c.data != args.c.data) copy(args.c, wide.c);
}

void tune_matmul(const MatmulArgs& args, std::span<std::byte> workspace, Stream stream) {
  if (stream.handle != nullptr) matmul_cuda::tune(args, workspace, stream);
}

}  // namespace tandem::ops
