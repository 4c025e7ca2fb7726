// Products of many rows in bf16: oneDNN on tiles of the output, one thread each.

#include "ops/linear_device.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "base/check.h"
#include "base/cpu_features.h"
#include "base/parallel.h"
#include "kernels/linear/decode_linear.h"
#include "ops/onednn.h"

namespace tandem::ops {
namespace linear_onednn {

/// The product of a tile, `rows` x `out`, of a layer.
struct Tile {
  int64_t rows, out;
  DType y_type;
  bool accumulate;
  auto operator<=>(const Tile&) const = default;
};

}  // namespace linear_onednn

namespace {

using dnnl::memory;
using linear_onednn::Tile;
using onednn::engine;
using onednn::kMaxPrimitives;
using onednn::row_major;

/// The fewest rows of a tile, which share one read of its weights. AMX multiplies so fast that a
/// second read costs more than the copies of narrow tiles.
int least_rows() { return isa_in_use() >= Isa::amx ? 256 : 32; }
// Panels of a tile where rows are too few to be divided among all threads.
constexpr int kMostPanels = 8;

int divided(int64_t n, int64_t by) { return static_cast<int>((n + by - 1) / by); }

dnnl::matmul::primitive_desc describe(const PackedWeights::Spec& spec, const Tile& t) {
  const memory::desc x = row_major(t.rows, spec.in, spec.input),
                     w({spec.in, t.out}, onednn::type_of(spec.input),
                       memory::format_tag::BA16a64b2a),
                     y = row_major(t.rows, t.out, t.y_type);
  const dnnl::primitive_attr attr = onednn::attributes(t.accumulate);
  if (!spec.bias) return {dnnl::matmul::desc(x, w, y), attr, engine()};
  return {dnnl::matmul::desc(x, w, row_major(1, t.out, DType::f32), y), attr, engine()};
}

/// Cuts a product of many rows into one tile per thread by rows, since more tiles would read the
/// weights more often. Where rows are too few, it also cuts by panels, two tiles per thread, so
/// that a thread that is done early takes another.
struct Tiles {
  int64_t rows, out;            // of all
  int64_t rows_each, out_each;  // of a tile, but for the last of a row or column
  int down, across;

  Tiles(int64_t n_rows, int64_t n_out, int threads) : rows(n_rows), out(n_out) {
    constexpr int kTileRows = 16;  // of AMX
    const int panels = divided(out, kPairPanel);
    const int parts = static_cast<int>(std::clamp<int64_t>(rows / least_rows(), 1, threads));
    rows_each = int64_t{divided(divided(rows, parts), kTileRows)} * kTileRows;
    down = divided(rows, rows_each);
    const int panels_each =
        parts == threads ? panels : std::clamp(panels * down / (2 * threads), 1, kMostPanels);
    out_each = int64_t{panels_each} * kPairPanel;
    across = divided(panels, panels_each);
  }
  int count() const { return down * across; }
  int64_t first_row(int i) const { return i / across * rows_each; }
  int64_t first_output(int i) const { return i % across * out_each; }
  Tile tile(int i, DType y_type, bool accumulate) const {
    return {std::min(rows_each, rows - first_row(i)), std::min(out_each, out - first_output(i)),
            y_type, accumulate};
  }
  /// oneDNN is slow where rows of a result have others between them: such tiles need a copy.
  size_t copy_bytes() const {
    return across == 1 ? 0 : static_cast<size_t>(rows_each * out_each) * sizeof(float);
  }
};

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

struct OneDnnLinear {
  struct Primitive {
    dnnl::matmul::primitive_desc desc;
    dnnl::matmul run;
  };

  PackedWeights::Spec spec;
  bf16* weights;
  float* bias;
  std::map<Tile, Primitive> primitives;

  const Primitive& primitive(const Tile& tile) {
    if (const auto it = primitives.find(tile); it != primitives.end()) return it->second;
    dnnl::matmul::primitive_desc pd = describe(spec, tile);
    return primitives.emplace(tile, Primitive{pd, dnnl::matmul(pd)}).first->second;
  }
};

namespace linear_onednn {

std::shared_ptr<OneDnnLinear> make(const PackedWeights::Spec& spec, bf16* weights, float* bias) {
  return std::make_shared<OneDnnLinear>(
      OneDnnLinear{.spec = spec, .weights = weights, .bias = bias, .primitives = {}});
}

size_t workspace_bytes(const PackedWeights::Spec& spec, int64_t max_rows) {
  const onednn::Threads one(1);
  size_t bytes = 1;
  // A scratchpad's size is not monotonic in the row count: ask at the powers of two below.
  for (int64_t rows = max_rows; rows > kDecodeRows; rows /= 2) {
    const Tiles tiles(rows, spec.out, max_threads());
    bytes = std::max(
        bytes, aligned(tiles.copy_bytes()) +
                   describe(spec, tiles.tile(0, DType::f32, true)).scratchpad_desc().get_size());
  }
  // Row counts below may be cut by panels.
  const auto most_rows = static_cast<size_t>(std::min<int64_t>(max_rows, 2 * least_rows()));
  const size_t copy = most_rows * kMostPanels * kPairPanel * sizeof(float);
  if (max_rows > kDecodeRows && max_threads() > 1) bytes = std::max(bytes, copy + 4096);
  return aligned(bytes) * static_cast<size_t>(max_threads());
}

void run(const Tensor& y, const Tensor& x, OneDnnLinear& s, bool accumulate,
         std::span<std::byte> workspace) {
  const int64_t rows = x.rows(), in = s.spec.in, out = s.spec.out;
  const int threads = max_threads();
  const Tiles tiles(rows, out, threads);
  if (s.primitives.size() >= kMaxPrimitives) s.primitives.clear();
  std::vector<const OneDnnLinear::Primitive*> products;
  {
    const onednn::Threads one(1);
    for (int i = 0; i < tiles.count(); ++i)
      products.push_back(&s.primitive(tiles.tile(i, y.dtype(), accumulate)));
  }
  const size_t each = workspace.size() / static_cast<size_t>(threads) / 64 * 64;
  TANDEM_CHECK(aligned(tiles.copy_bytes()) <= each,
               "{}: workspace of {} bytes is too small for {} threads", s.spec.name,
               workspace.size(), threads);
  const auto at = [](const Tensor& t, int64_t element) {
    return static_cast<std::byte*>(t.raw()) + static_cast<size_t>(element) * dtype_bytes(t.dtype());
  };
  parallel_for(tiles.count(), threads, [&](int i, int thread) {
    const onednn::Threads one(1);
    const OneDnnLinear::Primitive& product = *products[static_cast<size_t>(i)];
    const Tile tile = tiles.tile(i, y.dtype(), accumulate);
    const int64_t row = tiles.first_row(i), output = tiles.first_output(i);
    std::span<std::byte> mine = workspace.subspan(static_cast<size_t>(thread) * each, each);
    std::byte* const to = at(y, row * out + output);
    std::byte* const copy = tiles.across == 1 ? to : mine.data();
    mine = mine.subspan(aligned(tiles.copy_bytes()));
    const size_t row_bytes = static_cast<size_t>(tile.out) * dtype_bytes(y.dtype());
    const auto copy_rows = [&](bool begins) {
      for (int64_t r = 0; r < tile.rows && copy != to; ++r) {
        std::byte* const a = at(y, (row + r) * out + output);
        std::byte* const b = copy + static_cast<size_t>(r) * row_bytes;
        std::memcpy(begins ? b : a, begins ? a : b, row_bytes);
      }
    };
    if (accumulate) copy_rows(true);
    const memory::desc scratch = product.desc.scratchpad_desc();
    // Rare row counts may ask for more than the plan's sample of them: a few KiB, for the call.
    std::unordered_map<int, memory> args{
        {DNNL_ARG_SRC, {product.desc.src_desc(), engine(), at(x, row * in)}},
        {DNNL_ARG_WEIGHTS,
         {product.desc.weights_desc(), engine(),
          s.weights + output / kPairPanel * pair_panel_bytes(in) / int64_t{sizeof(bf16)}}},
        {DNNL_ARG_DST, {product.desc.dst_desc(), engine(), copy}},
        {DNNL_ARG_SCRATCHPAD, scratch.get_size() <= mine.size()
                                  ? memory(scratch, engine(), mine.data())
                                  : memory(scratch, engine())}};
    if (s.bias != nullptr)
      args.insert({DNNL_ARG_BIAS, {row_major(1, tile.out, DType::f32), engine(), s.bias + output}});
    product.run.execute(onednn::stream(), args);
    copy_rows(false);
  });
}

}  // namespace linear_onednn

namespace {

/// A primitive's code and its description, which oneDNN holds twice: 76 to 88 KiB under AVX-512
/// BF16 by shape and rows, one to sixteen threads.
constexpr size_t kPrimitiveBytes = size_t{80} << 10;
/// AMX generates more kernels for one product.
constexpr size_t kAmxPrimitiveBytes = size_t{104} << 10;
/// Pages of oneDNN's own code that its first products bring into memory, as measured.
constexpr size_t kLibraryBytes = size_t{512} << 10, kAmxLibraryBytes = size_t{1536} << 10;

bool by_onednn(DType dtype, Device device) {
  return device.kind == Device::Kind::cpu && dtype == DType::bf16 &&
         isa_in_use() >= Isa::avx512_bf16;
}

}  // namespace

size_t product_code_bytes(DType dtype, Device device, size_t shapes, int row_counts) {
  if (!by_onednn(dtype, device)) return 0;
  return shapes * std::min(static_cast<size_t>(row_counts), onednn::kMaxPrimitives) *
         (isa_in_use() >= Isa::amx ? kAmxPrimitiveBytes : kPrimitiveBytes);
}

size_t product_library_bytes(DType dtype, Device device) {
  if (!by_onednn(dtype, device)) return 0;
  return isa_in_use() >= Isa::amx ? kAmxLibraryBytes : kLibraryBytes;
}

}  // namespace tandem::ops
