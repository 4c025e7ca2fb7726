#include "kernels/channels/channel_products.h"

#include "kernels/channels/channel_steps.h"
#include "kernels/ffn/gate_vec.h"

// Each weight is loaded once into registers and multiplied by a few rows of x, whose sums stand
// there too; more rows go over the same weights again, which are then in the first cache. Rows of a
// list lie anywhere: where one ends, the processor's own prefetching does too, so that the rows of
// the next turn are asked for place by place while those of this one are multiplied.

namespace tandem {
namespace {

using simd::kW;
using simd::least;
using simd::Vec;

/// Rows of W in a turn: chains enough to wait for memory, not for the sums.
constexpr int kTogether = 4;
#if defined(TANDEM_ISA_scalar) || defined(TANDEM_ISA_avx2)
constexpr int kTileRows = 2;
#else
constexpr int kTileRows = 4;
#endif

/// Rows of W that are multiplied in one turn, and those of the next.
template <class T>
struct Turn {
  const T* w[kTogether];
  const T* next[kTogether];
};

/// sums[o * kListedRows + r] = row o of the turn times row r of x.
template <int kOf, int kRows, class T>
__attribute__((noinline)) void multiply_turn(float* sums, const Turn<T>& turn, const T* x, int in) {
  const Turn<T> t = turn;  // in registers: no store can change it
  Vec sum[kRows][kOf];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int o = 0; o < kOf; ++o) sum[r][o] = simd::zero();
  const auto add = [&](const Step<T>(&a)[kRows], const Step<T>& w, int o) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum[r][o] = w.add(sum[r][o], a[r]);
  };
  Step<T> a[kRows];
  int k = 0;
  for (; k + Step<T>::kNumbers <= in; k += Step<T>::kNumbers) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) a[r] = Step<T>::load(x + int64_t{r} * in + k);
#pragma GCC unroll 4
    for (int o = 0; o < kOf; ++o) {
      __builtin_prefetch(t.next[o] + k);
      add(a, Step<T>::load(t.w[o] + k), o);
    }
  }
  if (const int n = in - k; n > 0) {
    for (int r = 0; r < kRows; ++r) a[r] = Step<T>::load_n(x + int64_t{r} * in + k, n);
    for (int o = 0; o < kOf; ++o) add(a, Step<T>::load_n(t.w[o] + k, n), o);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int o = 0; o < kOf; ++o) sums[o * kListedRows + r] = simd::reduce_add(sum[r][o]);
}

/// The same for a number of rows known at run time.
template <int kOf, int kRows, class T>
void multiply_some(float* sums, const Turn<T>& t, const T* x, int in, int rows) {
  if (rows == kRows) return multiply_turn<kOf, kRows>(sums, t, x, in);
  if constexpr (kRows > 1) multiply_some<kOf, kRows - 1>(sums, t, x, in, rows);
}
template <int kOf, class T>
void multiply_rows(float* sums, const Turn<T>& t, const T* x, int in, int rows) {
  for (int r = 0; r < rows; r += kTileRows)
    multiply_some<kOf, kTileRows>(sums + r, t, x + int64_t{r} * in, in, least(kTileRows, rows - r));
}

int64_t channel_at(const int32_t* ids, int i) { return ids != nullptr ? ids[i] : i; }

/// Writes place i from the sums of its channel, [kListedRows] of gate and of up.
template <class T>
void finish(const GateUpChannelsParams& p, int i, const float* gate, const float* up) {
  const int64_t id = channel_at(p.ids, i);
  const float gate_bias = p.bias != nullptr ? p.bias[id] : 0;
  const float up_bias = p.bias != nullptr ? p.bias[p.n_channels + id] : 0;
  alignas(64) float factors[kListedRows] = {}, results[kListedRows];
  if (p.output == ChannelOutput::up)
    for (int r = 0; r < p.rows; ++r)
      factors[r] = simd::to_f32(static_cast<const T*>(p.gates)[int64_t{r} * p.n_channels + id]);
  else
    for (int r = 0; r < p.rows; r += kW)
      simd::store(factors + r, gate_value(p.gate, simd::load(gate + r) + simd::set1(gate_bias)));
  for (int r = 0; r < p.rows; r += kW) {
    const Vec factor = simd::load(factors + r);
    simd::store(results + r, p.output == ChannelOutput::gate
                                 ? factor
                                 : factor * (simd::load(up + r) + simd::set1(up_bias)));
  }
  T* const y = static_cast<T*>(p.y) + i;
  for (int r = 0; r < p.rows; ++r) simd::store1(y + r * p.y_stride, results[r]);
}

/// Channels of places from i on, kOf / kPer of them; `then` is the first of the next turn, which
/// ends where the last one's place is.
template <int kOf, int kPer, class T>
void run_turn(const GateUpChannelsParams& p, int i, int then, int last) {
  constexpr int kChannels = kOf / kPer;
  const bool of_up = p.output == ChannelOutput::up;
  Turn<T> t{};
  for (int c = 0; c < kChannels; ++c)
    for (int half = 0; half < kPer; ++half) {
      const int64_t first = of_up || half == 1 ? p.n_channels : 0;
      const auto row = [&](int place) {
        return static_cast<const T*>(p.w) + (first + channel_at(p.ids, place)) * p.in;
      };
      t.w[c * kPer + half] = row(i + c);
      t.next[c * kPer + half] = row(least(then + c, last));
    }
  alignas(64) float sums[kOf * kListedRows] = {};
  multiply_rows<kOf>(sums, t, static_cast<const T*>(p.x), p.in, p.rows);
  for (int c = 0; c < kChannels; ++c) {
    const float* const first = sums + c * kPer * kListedRows;
    finish<T>(p, i + c, first, first + (kPer - 1) * kListedRows);
  }
}

template <int kPer, class T>
void run_places(const GateUpChannelsParams& p, Range places) {
  constexpr int kStep = kTogether / kPer;
  int i = places.begin;
  for (; i + kStep <= places.end; i += kStep)
    run_turn<kTogether, kPer, T>(p, i, i + kStep, places.end - 1);
  for (; i < places.end; ++i) run_turn<kPer, kPer, T>(p, i, i + 1, places.end - 1);
}

/// Channels whose products are summed before they are added to out.
constexpr int kGroup = 8;

/// Rows of W of one group and those of the next, and what they are multiplied by.
template <class T>
struct Group {
  const T* w[kGroup];
  const T* next[kGroup];
  float y[kListedRows][kGroup];
  int n;
};

/// out[r, c] += the group's products, of kVectors vectors of columns, the last `lanes` long.
template <int kRows, int kVectors, class T>
TANDEM_INLINE void add_columns(float* out, int64_t width, const Group<T>& g, int first_row,
                               int64_t c, int lanes) {
  using Columns = DownStep<T>;
  Columns sums[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = Columns::zero();
  for (int j = 0; j < g.n; j += Columns::kChannels)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = c + int64_t{v} * Columns::kColumns;
      __builtin_prefetch(g.next[j] + at);
      if (Columns::kChannels == 2) __builtin_prefetch(g.next[j + 1] + at);
      const auto w = Columns::weights(g.w + j, at, lanes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sums[r][v].add(w, g.y[first_row + r] + j);
    }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      sums[r][v].add_to(out + (first_row + r) * width + c + v * Columns::kColumns, lanes);
}

template <int kRows, class T>
__attribute__((noinline)) void add_group(float* out, int64_t width, const Group<T>& g,
                                         int first_row, int64_t begin, int64_t end) {
  constexpr int kColumns = DownStep<T>::kColumns;
  constexpr int kVectors = 2;
  int64_t c = begin;
  for (; c + kVectors * kColumns <= end; c += kVectors * kColumns)
    add_columns<kRows, kVectors>(out, width, g, first_row, c, kColumns);
  for (; c < end; c += kColumns)
    add_columns<kRows, 1>(out, width, g, first_row, c,
                          static_cast<int>(end - c < kColumns ? end - c : kColumns));
}
template <int kRows, class T>
void add_rows(float* out, int64_t width, const Group<T>& g, int first_row, int rows, int64_t begin,
              int64_t end) {
  if (rows == kRows) return add_group<kRows>(out, width, g, first_row, begin, end);
  if constexpr (kRows > 1) add_rows<kRows - 1>(out, width, g, first_row, rows, begin, end);
}

template <class T>
void run_down(const DownChannelsParams& p, Range blocks) {
  const int64_t begin = int64_t{blocks.begin} * kDownColumns;
  int64_t end = int64_t{blocks.end} * kDownColumns;
  if (end > p.width) end = p.width;
  const int n = p.n != nullptr ? *p.n : p.n_channels;
  if (p.bias != nullptr)
    for (int64_t r = 0; r < p.rows; ++r)
      for (int64_t c = begin; c < end; ++c) p.out[r * p.width + c] += p.bias[c];
  const auto row = [&](int place) {
    return static_cast<const T*>(p.w) + channel_at(p.ids, least(place, n - 1)) * p.width;
  };
  Group<T> g;
  for (int i = 0; i < n; i += kGroup) {
    g.n = least(kGroup, n - i);
    for (int j = 0; j < kGroup; ++j) {
      g.w[j] = row(i + j);
      g.next[j] = row(i + kGroup + j);
      for (int64_t r = 0; r < p.rows; ++r)
        g.y[r][j] = j < g.n ? simd::to_f32(static_cast<const T*>(p.y)[r * p.y_stride + i + j]) : 0;
    }
    for (int r = 0; r < p.rows; r += kTileRows)
      add_rows<kTileRows>(p.out, p.width, g, r, least(kTileRows, p.rows - r), begin, end);
  }
}

}  // namespace

void TANDEM_ISA_FN(gate_up_channels)(const GateUpChannelsParams& p, Range places) {
  const bool both = p.output == ChannelOutput::gated;
  if (p.type == DType::bf16)
    both ? run_places<2, bf16>(p, places) : run_places<1, bf16>(p, places);
  else
    both ? run_places<2, float>(p, places) : run_places<1, float>(p, places);
}

void TANDEM_ISA_FN(down_channels)(const DownChannelsParams& p, Range blocks) {
  if (p.type == DType::bf16)
    run_down<bf16>(p, blocks);
  else
    run_down<float>(p, blocks);
}

}  // namespace tandem
