#include <algorithm>

#include "kernels/channels/channel_products.h"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/ffn/gate.cuh"
#include "kernels/linear/code_products.cuh"

// Rows of x times listed rows of gate and up: as skinny_linear (see skinny_linear.cuh), whose tiles
// here are of rows that a list names. A tile is 8 channels, their gates and their ups, or 16
// channels of ChannelOutput::gate or up in numbers. All blocks share the channels of the last turn.
// A channel's codes in a tile in memory are 64 bytes of each piece. Products of codes are as those
// of coded_linear, whose rows of x are in shared memory, in the order of lanes.

namespace tandem {
namespace {

using skinny::bf16x;

constexpr int kMostStages = 6, kLeastStages = 5;  // 16 KiB each; fewer where a block has no more
constexpr int kPlainThreads = 256, kPlainRows = 4;

/// Some neighbouring places of a list.
struct Tile {
  int first, size;
};

struct Listed {
  const GateUpChannelsParams& p;
  int n;

  __device__ explicit Listed(const GateUpChannelsParams& params)
      : p(params), n(params.n != nullptr ? *params.n : params.n_channels) {}
  __device__ bool both() const { return p.output == ChannelOutput::gated; }
  __device__ bool coded() const { return p.codes.data != nullptr; }
  __device__ int channels() const { return both() || coded() ? 8 : skinny::kTileRows; }
  /// Tiles that have all their channels: as many for each block.
  __device__ int whole_tiles() const {
    const int blocks = static_cast<int>(gridDim.x);
    return n / (blocks * channels()) * blocks;
  }
  /// Channels of the tiles after these.
  __device__ int last_size() const {
    const int blocks = static_cast<int>(gridDim.x);
    return max(1, (n - whole_tiles() * channels() + blocks - 1) / blocks);
  }
  __device__ int tiles() const {
    const int rest = n - whole_tiles() * channels();
    return whole_tiles() + (rest + last_size() - 1) / last_size();
  }
  __device__ Tile tile(int t) const {
    const int whole = whole_tiles();
    if (t < whole) return {t * channels(), channels()};
    const int first = whole * channels() + (t - whole) * last_size();
    return {first, min(last_size(), n - first)};
  }
  __device__ int id(int place) const {
    const int i = min(place, n - 1);
    return p.ids != nullptr ? p.ids[i] : i;
  }
  template <class T>
  __device__ const T* row(int64_t r) const {
    return static_cast<const T*>(p.w) + r * p.in;
  }
};

/// The lane's copies of W, some steps ahead of its products.
struct Loader {
  const Listed& list;
  int steps, tiles;
  int warp, g, t;
  unsigned ring;  // shared address of the lane's first piece
  int tile, step = 0;
  int low_id = 0, high_id = 0;  // of the tile that begins next, negative without a channel
  const bf16x* low = nullptr;
  const bf16x* high = nullptr;

  /// Reads the ids of a tile before they are needed.
  __device__ void look_up() {
    if (tile >= tiles) return;
    const Tile of = list.tile(tile);
    low_id = g < of.size ? list.id(of.first + g) : -1;
    high_id = list.both() ? low_id : g + 8 < of.size ? list.id(of.first + g + 8) : -1;
  }
  __device__ void begin_tile() {
    const int64_t ups = list.p.n_channels;
    const bool of_up = list.p.output == ChannelOutput::up;
    low = low_id < 0 ? nullptr : list.row<bf16x>(low_id + (of_up ? ups : 0));
    high = high_id < 0 ? nullptr : list.row<bf16x>(high_id + (of_up || list.both() ? ups : 0));
  }
  /// Zeros without a channel, and after the last column.
  __device__ void copy(unsigned to, const bf16x* row, int k) const {
    const bool wanted = row != nullptr && k < list.p.in;
    cuda::copy_async<16>(to, wanted ? row + k : list.row<bf16x>(0), wanted);
  }
  __device__ void issue(int stage) {
    if (tile < tiles && steps > 0) {
      if (step == 0) begin_tile();
      const unsigned slot = ring + stage * skinny::kStageBytes;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int k = (step * skinny::kWarps + warp) * skinny::kChunk + h * 32 + t * 8;
        copy(slot + h * 1024, low, k);
        copy(slot + h * 1024 + 512, high, k);
      }
      if (step == 0) {
        tile += gridDim.x;
        look_up();
        tile -= gridDim.x;
      }
      if (++step == steps) {
        step = 0;
        tile += gridDim.x;
        if (tile + static_cast<int>(gridDim.x) >= tiles) cuda::release_next();
      }
    }
    cuda::copies_commit();
  }
};

/// Writes a finished tile: lane and i stand for weight row m = lane % 16 of the tile and row
/// 2 i + lane / 16 of x.
template <int kWarps>
struct Finish {
  const Listed& list;
  const float* parts;
  int lane, m = lane % skinny::kTileRows;
  int place, id;
  bool real, writes;
  float bias;

  __device__ Finish(const Listed& of_list, int tile, const float* sums, int lane_of)
      : list(of_list), parts(sums), lane(lane_of) {
    const GateUpChannelsParams& p = list.p;
    const bool eights = list.channels() == 8, is_up = p.output == ChannelOutput::up;
    const bool of_up = eights ? m >= 8 : is_up;
    const int in_tile = eights ? m % 8 : m;
    const Tile of = list.tile(tile);
    place = of.first + in_tile;
    real = in_tile < of.size;
    writes = real && of_up == is_up;
    id = list.id(place);
    bias = p.bias != nullptr ? p.bias[id + (of_up ? p.n_channels : 0)] : 0.0f;
  }
  __device__ void pair(int i) const {
    const GateUpChannelsParams& p = list.p;
    const int each = skinny::part_floats(p.rows), n = 2 * i + lane / skinny::kTileRows;
    float sum = bias;
    if (real && n < p.rows) {
      float products = 0;
      for (int w = 0; w < kWarps; ++w) products += parts[w * each + i * 32 + lane];
      sum += products;
    }
    const float up = list.both() ? __shfl_down_sync(cuda::kAllLanes, sum, 8) : 0;
    if (!writes || n >= p.rows) return;
    float value = 0;
    if (p.output == ChannelOutput::up)
      value =
          sum * cuda::to_float(static_cast<const bf16x*>(p.gates)[int64_t{n} * p.n_channels + id]);
    else
      value = cuda::fused_value<bf16x>(p.gate, sum) * (list.both() ? up : 1.0f);
    static_cast<bf16x*>(p.y)[n * p.y_stride + place] = __float2bfloat16_rn(value);
  }
};

/// x into shared memory, as [rows, pitch].
__device__ void copy_rows(const GateUpChannelsParams& p, bf16x* to, int pitch) {
  const auto* from = static_cast<const bf16x*>(p.x);
  for (int n = 0; n < p.rows; ++n)
#pragma unroll 4
    for (int k = static_cast<int>(threadIdx.x) * 8; k < p.in; k += skinny::kThreads * 8)
      *reinterpret_cast<uint4*>(to + n * pitch + k) =
          *reinterpret_cast<const uint4*>(from + int64_t{n} * p.in + k);
  __syncthreads();
}

/// kGroups: eights of x's rows. copies: x is read at once into shared memory; piece by piece from
/// L2 it comes late while W does.
template <int kGroups, int kStages>
__global__ void __launch_bounds__(skinny::kThreads, 1)
    gate_up_channels(const GateUpChannelsParams p, const bool copies) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kWarps = skinny::kWarps, kChunk = skinny::kChunk;
  const bool early = p.ids == nullptr || p.settled;
  if (!early) cuda::wait_for_previous();  // for the list
  const Listed list(p);
  const int warp = cuda::warp_of(), lane = cuda::lane_of(), g = lane / 4, t = lane % 4;
  const int chunks = (p.in + kChunk - 1) / kChunk;
  const int steps = (chunks - warp + kWarps - 1) / kWarps;  // <= 0: nothing for this warp
  const int tiles = list.tiles();
  const int lane_at = warp * skinny::kChunkBytes + lane * 16;

  float* parts = reinterpret_cast<float*>(shared + kStages * skinny::kStageBytes);
  Loader loader{.list = list,
                .steps = steps,
                .tiles = tiles,
                .warp = warp,
                .g = g,
                .t = t,
                .ring = static_cast<unsigned>(__cvta_generic_to_shared(shared)) + lane_at,
                .tile = static_cast<int>(blockIdx.x)};
  loader.look_up();
  for (int s = 0; s < kStages; ++s) loader.issue(s);
  if (early) cuda::wait_for_previous();  // for x
  const int pitch = copies ? skinny::pitch_of(p.in) : p.in;
  const auto* rows = static_cast<const bf16x*>(p.x);
  if (copies) {
    auto* const copy = reinterpret_cast<bf16x*>(shared + kStages * skinny::kStageBytes +
                                                skinny::parts_bytes(p.rows));
    copy_rows(p, copy, pitch);
    rows = copy;
  }
  const bf16x* x[kGroups];
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const int n = g + 8 * j;
    x[j] = n < p.rows ? rows + int64_t{n} * pitch : nullptr;
  }
  const int first = warp * kChunk + t * 8;
  skinny::Pieces<kGroups> ahead;
  ahead.load(x, first, p.in);

  int stage = 0, buffer = 0, turn = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    skinny::Sums<kGroups> sums;
    for (int s = 0; s < steps; ++s) {
      const skinny::Pieces<kGroups> b = ahead;
      ahead.load(x, first + (s + 1 == steps ? 0 : s + 1) * skinny::kStep, p.in);
      cuda::copies_wait<kStages - 1>();
      const unsigned char* slot = shared + stage * skinny::kStageBytes + lane_at;
      sums.add(slot, [&](int h, int j) { return b.at[h][j]; });
      loader.issue(stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    float* set = parts + buffer * kWarps * skinny::part_floats(p.rows);
    sums.put(set + warp * skinny::part_floats(p.rows), p.rows, g, t);
    __syncthreads();
    if (warp == turn) {
      const Finish<kWarps> finish(list, tile, set, lane);
#pragma unroll
      for (int i = 0; i < kGroups * 4; ++i)
        if (2 * i < p.rows) finish.pair(i);
    }
    buffer ^= 1;
    turn = (turn + 1) % kWarps;
  }
}

namespace coded {

constexpr int kWarps = 16, kThreads = kWarps * cuda::kWarp;
constexpr int kMostStages = 6, kLeastStages = 2;

/// A tile of 8 channels in shared memory: the lanes' codes, then words of scales, by unit and row
/// of the tile, then words of zeros. A word holds a number and neighbours of it.
__host__ __device__ constexpr int words_at(const CodeTiles& w) { return w.pieces() * kPieceBytes; }
__host__ __device__ constexpr int stage_bytes(const CodeTiles& w) {
  return words_at(w) + w.units() * kTileOutputs * 4 * (w.zero == Zero::none ? 1 : 2);
}

/// The lane's copies of codes, some steps ahead of its products.
class Loader {
 public:
  /// steps    tiles of the warp in a row of tiles
  __device__ Loader(const Listed& list, int steps, int warp, int lane, void* ring)
      : list_(list),
        w_(list.p.codes),
        steps_(steps),
        tiles_(list.tiles()),
        g_(lane / 4),
        t_(lane % 4),
        first_(warp * w_.tile_bytes()),
        slot_(cuda::shared_address(ring) + warp * stage_bytes(w_)),
        tile_(steps > 0 ? static_cast<int>(blockIdx.x) : tiles_) {
    look_up();
  }

  /// at       bytes of a stage from the ring's begin
  __device__ void issue(int at) {
    if (tile_ < tiles_) {
      if (step_ == 0) begin_tile();
      const unsigned to = slot_ + at;
      const bool wanted = from_ != nullptr;
      const uint8_t* const from = wanted ? from_ : w_.data;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i < w_.pieces())
          cuda::copy_async<16>(to + i * kPieceBytes + (g_ * 4 + t_) * 16,
                               from + i * kPieceBytes + (row_ * 4 + t_) * 16, wanted);
      const int n = w_.units() * 2;
      for (int i = t_; i < n; i += 4) {
        const unsigned word = to + words_at(w_) + (i * 8 + g_) * 4;
        const int place = i * 8 + row_;
        const auto copy = [&](unsigned at_word, int array, int bytes) {
          cuda::copy_async<4>(at_word, from + array + (place * bytes & ~3), wanted);
        };
        copy(word, w_.scales_at(), w_.scale_bytes());
        if (w_.zero != Zero::none) copy(word + n * 8 * 4, w_.zeros_at(), w_.zero_bytes());
      }
      if (wanted) from_ += kWarps * w_.tile_bytes();
      if (++step_ == steps_) {
        step_ = 0;
        tile_ += gridDim.x;
        if (tile_ + static_cast<int>(gridDim.x) >= tiles_) cuda::release_next();
      }
    }
    cuda::copies_commit();
  }
  /// Returns the row of the lane's channel in its tile in memory, by which its numbers lie in
  /// words. It is that of the tile that is multiplied next.
  __device__ int next_row() { return rows_ >> (3 * --waiting_) & 7; }

 private:
  /// Reads the id of a tile before it is needed.
  __device__ void look_up() {
    if (tile_ >= tiles_) return;
    const Tile of = list_.tile(tile_);
    id_ = g_ < of.size ? list_.id(of.first + g_) : -1;
  }
  __device__ void begin_tile() {
    row_ = max(id_, 0) % 8;
    from_ = id_ < 0 ? nullptr : w_.data + id_ / 8 * w_.row_bytes() + first_;
    rows_ = rows_ << 3 | static_cast<unsigned>(row_);
    ++waiting_;
    tile_ += gridDim.x;
    look_up();
    tile_ -= gridDim.x;
  }

  const Listed& list_;
  const CodeTiles& w_;
  int steps_, tiles_, g_, t_, first_;
  unsigned slot_;
  int tile_, step_ = 0;
  int id_ = -1, row_ = 0;          // the lane's channel in the next tile, its row in this one
  const uint8_t* from_ = nullptr;  // null without a channel
  unsigned rows_ = 0;              // rows of channels in tiles, the last in the last bits
  int waiting_ = 0;                // tiles begun that are not multiplied
};

/// kUnit: inputs of a tile that share a scale; kGroups: eights of x's rows.
template <Code kCode, int kUnit, Zero kZero, int kGroups>
__global__ void __launch_bounds__(kThreads, 1)
    gate_up_codes(const GateUpChannelsParams p, const int stages) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kUnits = kTileInputs / kUnit;
  const bool early = p.ids == nullptr || p.settled;
  if (!early) cuda::wait_for_previous();  // for the list
  const Listed list(p);
  const CodeTiles& w = p.codes;
  const int warp = cuda::warp_of(), lane = cuda::lane_of(), g = lane / 4, t = lane % 4;
  const int steps = (w.across() - warp + kWarps - 1) / kWarps;  // <= 0: nothing for this warp
  const int tiles = list.tiles(), each = skinny::part_floats(p.rows);
  const int stage = kWarps * stage_bytes(w), ring_bytes = stages * stage;
  auto* const parts = reinterpret_cast<float*>(shared + ring_bytes);
  auto* const x = reinterpret_cast<bf16x*>(parts + 2 * kWarps * each);
  const int pitch = tiles::pitch_of(p.in);

  Loader loader(list, steps, warp, lane, shared);
  for (int at = 0; at < ring_bytes; at += stage) loader.issue(at);
  if (early) cuda::wait_for_previous();  // for x
  tiles::load_input<tiles::LaneOrder<tiles::kInX<kCode>>, kThreads>(p.x, p.rows, p.in, x);
  // Lanes without a row of x read the last one. Their sums are not used.
  const bf16x* lane_x[kGroups];
#pragma unroll
  for (int j = 0; j < kGroups; ++j)
    lane_x[j] = x + min(g + 8 * j, p.rows - 1) * pitch + warp * kTileInputs + t * 16;
  const tiles::Reader<kCode, kZero == Zero::minimum> read(w);
  const bool has_zero = w.zero != Zero::none;

  int at = 0, buffer = 0, turn = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    skinny::Sums<kGroups> sums[1];
    const int row = steps > 0 ? loader.next_row() : 0;
    // A channel's number is at its place among those of a word.
    const auto half = [&](unsigned word) { return word >> row % 2 * 16 & 0xffff; };
    const auto scales = [&](int place, const unsigned char* from) {
      const auto* const words = reinterpret_cast<const unsigned*>(from);
      uint2 bits{words[place], 0};
      if (kCode != Code::fp8) bits.x = half(bits.x);
      if (has_zero) bits.y = words[kUnits * kTileOutputs + place];
      bits.y = kZero == Zero::minimum ? half(bits.y) : bits.y >> row % 4 * 8 & 0xff;
      return bits;
    };
    for (int s = 0; s < steps; ++s) {
      cuda::copies_wait(stages - 1);
      __syncwarp();
      tiles::add_tiles<kCode, kUnit, kZero>(
          sums, shared + at + warp * stage_bytes(w), 0, read, lane, scales, [&](int k, int j) {
            return *reinterpret_cast<const uint4*>(lane_x[j] + s * kWarps * kTileInputs +
                                                   k / 4 * skinny::kChunk + k % 4 * 4);
          });
      __syncwarp();
      loader.issue(at);
      at = at + stage == ring_bytes ? 0 : at + stage;
    }
    float* const set = parts + buffer * kWarps * each;
    sums[0].put(set + warp * each, p.rows, g, t);
    __syncthreads();
    // Warps take turns, so that the first ones are not the last ones of each tile.
    if (const int i = (warp - turn + kWarps) % kWarps; 2 * i < p.rows)
      Finish<kWarps>(list, tile, set, lane).pair(i);
    buffer ^= 1;
    turn = (turn + kGroups * 4) % kWarps;
  }
}

template <Code kCode, int kUnit>
auto kernel_of(bool minimum, bool few) {
  if (minimum)
    return few ? gate_up_codes<kCode, kUnit, Zero::minimum, 1>
               : gate_up_codes<kCode, kUnit, Zero::minimum, 2>;
  return few ? gate_up_codes<kCode, kUnit, Zero::integer, 1>
             : gate_up_codes<kCode, kUnit, Zero::integer, 2>;
}

template <Code kCode>
auto kernel_of(const CodeTiles& w, bool few) {
  const bool minimum = w.zero == Zero::minimum;
  switch (w.unit()) {
    case 16:
      return kernel_of<kCode, 16>(minimum, few);
    case 32:
      return kernel_of<kCode, 32>(minimum, few);
    case 64:
      return kernel_of<kCode, 64>(minimum, few);
    default:
      return kernel_of<kCode, kTileInputs>(minimum, few);
  }
}

/// Launches the rows of x that shared memory has room for.
/// returns  their number; 0: not even one row fits
int launch(GateUpChannelsParams p, Stream stream) {
  const cuda::Gpu& gpu = cuda::gpu();
  const auto bytes_of = [&](int stages) {
    return stages * kWarps * stage_bytes(p.codes) + 2 * kWarps * skinny::part_floats(p.rows) * 4 +
           p.rows * tiles::pitch_of(p.in) * 2;
  };
  const int room = gpu.block_shared_bytes - (skinny::kReservedBytes - 1024);
  while (p.rows > 0 && bytes_of(kLeastStages) > room) --p.rows;
  if (p.rows == 0) return 0;
  int stages = kMostStages;
  while (bytes_of(stages) > room) --stages;
  const bool few = p.rows <= 8;
  const auto kernel = p.codes.code == Code::i4   ? kernel_of<Code::i4>(p.codes, few)
                      : p.codes.code == Code::i8 ? kernel_of<Code::i8>(p.codes, few)
                      : few ? gate_up_codes<Code::fp8, kTileInputs, Zero::integer, 1>
                            : gate_up_codes<Code::fp8, kTileInputs, Zero::integer, 2>;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes_of(stages));
  cuda::launch(kernel, static_cast<unsigned>(std::min((p.most + 7) / 8, gpu.multiprocessors)),
               kThreads, static_cast<size_t>(bytes_of(stages)), 1, stream, p, stages);
  return p.rows;
}

}  // namespace coded

/// Row `row` of W times kPlainRows rows of x, summed over a warp.
template <class T>
__device__ void products(const GateUpChannelsParams& p, int64_t row, int first,
                         float (&sums)[kPlainRows]) {
  const auto weight_at = [&](int k) {
    return p.codes.data != nullptr ? tiles::number_at(p.codes, static_cast<int>(row), k)
                                   : cuda::to_float(static_cast<const T*>(p.w)[row * p.in + k]);
  };
  const float b = p.bias != nullptr ? p.bias[row] : 0.0f;
#pragma unroll
  for (float& sum : sums) sum = 0;
  for (int k = cuda::lane_of(); k < p.in; k += cuda::kWarp) {
    const float weight = weight_at(k);
#pragma unroll
    for (int r = 0; r < kPlainRows; ++r)
      if (first + r < p.rows)
        sums[r] = fmaf(cuda::to_float(static_cast<const T*>(p.x)[int64_t{first + r} * p.in + k]),
                       weight, sums[r]);
  }
#pragma unroll
  for (float& sum : sums) sum = cuda::warp_sum(sum) + b;
}

/// For any type, number of columns and address: a warp a channel.
template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    gate_up_channels_plain(const GateUpChannelsParams p) {
  cuda::wait_for_previous();
  cuda::release_next();
  const Listed list(p);
  constexpr int kWarps = kPlainThreads / cuda::kWarp;
  for (int i = static_cast<int>(blockIdx.x) * kWarps + cuda::warp_of(); i < list.n;
       i += static_cast<int>(gridDim.x) * kWarps) {
    const int id = list.id(i);
    for (int first = 0; first < p.rows; first += kPlainRows) {
      float gate[kPlainRows] = {}, up[kPlainRows] = {};
      if (p.output != ChannelOutput::up) products<T>(p, id, first, gate);
      if (p.output != ChannelOutput::gate) products<T>(p, int64_t{p.n_channels} + id, first, up);
      if (cuda::lane_of() != 0) continue;
#pragma unroll
      for (int r = 0; r < kPlainRows; ++r) {
        const int64_t n = first + r;
        if (n >= p.rows) break;
        const float factor =
            p.output == ChannelOutput::up
                ? cuda::to_float(static_cast<const T*>(p.gates)[n * p.n_channels + id])
                : cuda::fused_value<T>(p.gate, gate[r]);
        static_cast<T*>(p.y)[n * p.y_stride + i] =
            cuda::from_float<T>(p.output == ChannelOutput::gate ? factor : factor * up[r]);
      }
    }
  }
}

template <int kGroups>
auto kernel_of(int stages) {
  return stages == kMostStages ? gate_up_channels<kGroups, kMostStages>
                               : gate_up_channels<kGroups, kLeastStages>;
}

}  // namespace

void gate_up_channels_cuda(const GateUpChannelsParams& p, Stream stream) {
  if (p.rows == 0 || p.most == 0) return;
  if (p.codes.data != nullptr && cuda::packable<bf16>(p.in, p.x)) {
    const int done = coded::launch(p, stream);
    if (done == p.rows) return;
    if (done > 0) {
      GateUpChannelsParams rest = p;
      const auto after = [&](const void* rows, int64_t stride) {
        return static_cast<const bf16x*>(rows) + done * stride;
      };
      rest.rows -= done;
      rest.x = after(p.x, p.in);
      rest.y = static_cast<bf16x*>(p.y) + done * p.y_stride;
      if (p.gates != nullptr) rest.gates = after(p.gates, p.n_channels);
      return gate_up_channels_cuda(rest, stream);
    }
  }
  const cuda::Gpu& gpu = cuda::gpu();
  const auto bytes_of = [&](int stages) {
    return stages * skinny::kStageBytes + skinny::parts_bytes(p.rows);
  };
  const auto fits = [&](int stages) {
    return bytes_of(stages) + skinny::kReservedBytes - 1024 <= gpu.block_shared_bytes;
  };
  if (p.codes.data == nullptr && p.type == DType::bf16 && cuda::packable<bf16>(p.in, p.w, p.x) &&
      fits(kLeastStages)) {
    const int stages = fits(kMostStages) ? kMostStages : kLeastStages;
    // Of a multiprocessor more than half, with the 1 KiB that the system adds: as skinny_linear,
    // and for its reason.
    const int least = gpu.isa == cuda::GpuIsa::hopper ? gpu.shared_bytes / 2 - 1024 + 256 : 0;
    const int bytes = std::max(bytes_of(stages), least);
    // Of one row, as a rule: more take longer than they save (measured, 4 rows of 4,096).
    const bool copies = bytes_of(stages) + p.rows * skinny::pitch_of(p.in) * 2 <= least;
    const auto kernel = p.rows > 8 ? kernel_of<2>(stages) : kernel_of<1>(stages);
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    const int channels = p.output == ChannelOutput::gated ? 8 : skinny::kTileRows;
    const int tiles = (p.most + channels - 1) / channels;
    return cuda::launch(kernel, static_cast<unsigned>(std::min(tiles, gpu.multiprocessors)),
                        skinny::kThreads, static_cast<size_t>(bytes), 1, stream, p, copies);
  }
  cuda::with_act(p.type, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    const unsigned blocks = cuda::blocks_for(p.most, kPlainThreads / cuda::kWarp);
    cuda::launch(gate_up_channels_plain<T>,
                 std::min(blocks, 8 * static_cast<unsigned>(gpu.multiprocessors)), kPlainThreads,
                 stream, p);
  });
}

}  // namespace tandem
