#include "kernels/channels/channel_places.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;
// Pieces of a row that a lane moves at once: a link of 60 GB/s and 2 us has 120 KB in flight, some
// 60 warps' worth of these.
constexpr int kAtOnce = 4;
constexpr int kMatrices = 3;  // gate, up, down
constexpr unsigned kMaxBlocks = 1024, kMaxGridRows = 65535;

/// Row i of matrix k.
template <class Piece>
__device__ Piece* row_of(const ChannelMatrices& m, int k, int64_t i, int64_t pieces) {
  return k < 2 ? static_cast<Piece*>(m.gate_up) + (k * int64_t{m.n_channels} + i) * pieces
               : static_cast<Piece*>(m.down) + i * pieces;
}

template <class T>
__device__ void exchange(T& a, T& b) {
  const T held = a;
  a = b;
  b = held;
}

__device__ void exchange_biases(const ExchangeChannelsParams& p, int k, int64_t i, int64_t j) {
  const int64_t a = k * int64_t{p.set.n_channels} + i, b = k * int64_t{p.rest.n_channels} + j;
  exchange(p.set.bias[a], p.rest.bias[b]);
  exchange(p.set.rounded_bias[a], p.rest.rounded_bias[b]);
}

template <class Piece>
__global__ void __launch_bounds__(kThreads)
    exchange_rows(const ExchangeChannelsParams p, int64_t pieces) {
  cuda::wait_for_previous();
  const int lane = threadIdx.x % kWarp;
  const int64_t n_warps = int64_t{gridDim.x} * kWarps;
  const int64_t n_rows = int64_t{p.n} * kMatrices;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < n_rows;
       row += n_warps) {
    const int k = static_cast<int>(row % kMatrices);
    const int32_t* const swap = p.swaps + row / kMatrices * 2;
    Piece* const a = row_of<Piece>(p.set, k, swap[0], pieces);
    Piece* const b = row_of<Piece>(p.rest, k, swap[1], pieces);
    for (int64_t first = lane; first < pieces; first += kWarp * kAtOnce) {
      Piece from_a[kAtOnce], from_b[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int64_t at = first + u * kWarp;
        if (at >= pieces) break;
        from_a[u] = a[at];
        from_b[u] = b[at];
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int64_t at = first + u * kWarp;
        if (at >= pieces) break;
        a[at] = from_b[u];
        b[at] = from_a[u];
      }
    }
    if (k < 2 && lane == 0 && p.set.bias != nullptr) exchange_biases(p, k, swap[0], swap[1]);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) scatter_rows(const ScatterColumnsParams p) {
  cuda::start_after_previous();
  const int c = static_cast<int>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= p.n_columns) return;
  const int64_t column = p.columns[c];
  for (int64_t r = blockIdx.y; r < p.n_rows; r += gridDim.y)
    static_cast<T*>(p.out)[r * p.width + column] = static_cast<const T*>(p.in)[r * p.n_columns + c];
}

}  // namespace

void exchange_channels_cuda(const ExchangeChannelsParams& p, Stream stream) {
  if (p.n == 0 || p.width == 0) return;
  const auto number = static_cast<int64_t>(p.type == DType::bf16 ? sizeof(bf16) : sizeof(float));
  const int64_t row_bytes = p.width * number;
  const unsigned wanted = cuda::blocks_for(int64_t{p.n} * kMatrices, kWarps);
  const dim3 grid(wanted < kMaxBlocks ? wanted : kMaxBlocks);
  if (row_bytes % static_cast<int64_t>(sizeof(uint4)) == 0)
    cuda::launch(exchange_rows<uint4>, grid, kThreads, stream, p,
                 row_bytes / static_cast<int64_t>(sizeof(uint4)));
  else
    cuda::launch(exchange_rows<uint16_t>, grid, kThreads, stream, p,
                 row_bytes / static_cast<int64_t>(sizeof(uint16_t)));
}

void scatter_columns_cuda(const ScatterColumnsParams& p, Stream stream) {
  if (p.n_rows == 0 || p.n_columns == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    const auto rows = static_cast<unsigned>(p.n_rows);
    const dim3 grid(cuda::blocks_for(p.n_columns, kThreads),
                    rows < kMaxGridRows ? rows : kMaxGridRows);
    cuda::launch(scatter_rows<T>, grid, kThreads, stream, p);
  });
}

}  // namespace tandem
