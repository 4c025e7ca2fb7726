#include "ops/channels.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/parallel.h"
#include "ops/linear_gradient.h"
#include "ops/operation.h"

namespace tandem::ops {
namespace {

constexpr Operation kUnite{"unite_channels", &CpuTable::unite_channels, &CudaTable::unite_channels};
constexpr Operation kGateUp{"gate_up_channels", &CpuTable::gate_up_channels,
                            &CudaTable::gate_up_channels};
constexpr Operation kDown{"down_channels", &CpuTable::down_channels, &CudaTable::down_channels};
constexpr int kGrain = 16;  // channels of a thread, at least

void on_host(Stream stream) {
  if (stream.handle != nullptr)
    throw Error(ErrorKind::device, "sparse.kind", "FFN channels are read on the CPU alone so far");
}

auto with_type(DType dtype, const auto& run) {
  return dtype == DType::bf16 ? run(static_cast<bf16*>(nullptr))
                              : run(static_cast<float*>(nullptr));
}
template <class T>
float dot(const T* a, const T* b, int64_t n) {
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane)
      sums[lane] += to_float(a[i + lane]) * to_float(b[i + lane]);
  for (; i < n; ++i) sums[0] += to_float(a[i]) * to_float(b[i]);
  return std::accumulate(sums, sums + kLanes, 0.0f);
}

int64_t channels_of(const PackedWeights& gate_up) { return gate_up.out() / 2; }

int64_t row_bytes(const PackedWeights& w) {
  return w.in() * static_cast<int64_t>(dtype_bytes(w.dtype()));
}

void check_gate_up(const Tensor& y, const Tensor& x, const PackedWeights& w, int64_t places) {
  TANDEM_CHECK(x.dtype() == w.dtype() && x.row_size() == w.in() && x.rows() <= kListedRows &&
                   y.dtype() == w.dtype() && y.rows() == x.rows() && y.row_size() >= places,
               "{} [{}, {}] of {} [{}, {}], {} channels", dtype_name(y.dtype()), y.rows(),
               y.row_size(), dtype_name(x.dtype()), x.rows(), x.row_size(), places);
}

GateUpChannelsParams gate_up_params(const Tensor& y, const Tensor& x, const PackedWeights& w,
                                    ChannelOutput output) {
  return {.y = y.raw(),
          .x = x.raw(),
          .w = trainable_rows(w),
          .bias = w.bias(),
          .gate = nullptr,
          .ids = nullptr,
          .n = nullptr,
          .y_stride = y.row_size(),
          .rows = static_cast<int>(x.rows()),
          .in = static_cast<int>(w.in()),
          .n_channels = static_cast<int>(channels_of(w)),
          .most = 0,
          .type = w.dtype(),
          .output = output};
}

void run_listed(GateUpChannelsParams p, const ChannelList& list, int64_t channel_bytes,
                Stream stream) {
  p.ids = list.ids;
  p.n = list.n;
  p.most = list.most;
  kGateUp.run(p, stream.handle == nullptr && list.n != nullptr ? *list.n : list.most, channel_bytes,
              stream);
}

}  // namespace

void gates(const Tensor& y, const Tensor& x, const PackedWeights& w, Stream stream) {
  check_gate_up(y, x, w, channels_of(w));
  GateUpChannelsParams p = gate_up_params(y, x, w, ChannelOutput::silu_gate);
  p.most = p.n_channels;
  kGateUp.run(p, p.n_channels, row_bytes(w), stream);
}

void swiglu_channels(const Tensor& y, const Tensor& x, const PackedWeights& w,
                     const ChannelList& list, Stream stream) {
  check_gate_up(y, x, w, list.most);
  run_listed(gate_up_params(y, x, w, ChannelOutput::swiglu), list, 2 * row_bytes(w), stream);
}

void up_channels(const Tensor& y, const Tensor& gate, const Tensor& x, const PackedWeights& w,
                 const ChannelList& list, Stream stream) {
  check_gate_up(y, x, w, list.most);
  TANDEM_CHECK(
      gate.dtype() == w.dtype() && gate.rows() == x.rows() && gate.row_size() == channels_of(w),
      "gates {} [{}, {}] of {} channels", dtype_name(gate.dtype()), gate.rows(), gate.row_size(),
      channels_of(w));
  GateUpChannelsParams p = gate_up_params(y, x, w, ChannelOutput::up);
  p.gate = gate.raw();
  run_listed(p, list, row_bytes(w), stream);
}

void down_channels(const Tensor& out, const Tensor& y, const PackedWeights& w,
                   const ChannelList& list, Stream stream) {
  TANDEM_CHECK(out.dtype() == DType::f32 && out.row_size() == w.out() && out.rows() == y.rows() &&
                   y.dtype() == w.dtype() && y.row_size() >= list.most && y.rows() <= kListedRows,
               "output [{}, {}] of rows [{}, {}]", out.rows(), out.row_size(), y.rows(),
               y.row_size());
  const DownChannelsParams p{.out = out.as<float>(),
                             .y = y.raw(),
                             .w = w.input_rows(),
                             .bias = w.bias(),
                             .ids = list.ids,
                             .n = list.n,
                             .y_stride = y.row_size(),
                             .rows = static_cast<int>(y.rows()),
                             .width = static_cast<int>(w.out()),
                             .n_channels = static_cast<int>(w.in()),
                             .most = list.most,
                             .type = w.dtype()};
  TANDEM_CHECK(p.w != nullptr, "[{}, {}]: not by input", w.out(), w.in());
  const int blocks = (p.width + kDownColumns - 1) / kDownColumns;
  const int64_t column_bytes = kDownColumns * static_cast<int64_t>(dtype_bytes(w.dtype()));
  const int n = stream.handle == nullptr && list.n != nullptr ? *list.n : list.most;
  kDown.run(p, blocks, n * column_bytes, stream);
}

void add_squares(const AddSquares& what, const StepArrays& step, int n_channels, Stream stream) {
  on_host(stream);
  with_type(what.x.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto row = [&](int64_t r) { return what.x.as<T>() + r * what.x.row_size() + what.first; };
    std::vector<float> scale(static_cast<size_t>(what.x.rows()), 1);
    for (size_t r = 0; what.normalise && r < scale.size(); ++r) {
      const float sum = dot(row(static_cast<int64_t>(r)), row(static_cast<int64_t>(r)), n_channels);
      scale[r] = sum > 0 ? 1 / sum : 0;
    }
    for (int b = 0; b < step.n_seqs; ++b) {
      const int64_t first = step.row_begin[b], last = step.row_begin[b + 1];
      if (first == last) continue;
      float* const sums = what.to.sums + step.slot[b] * what.to.slot_stride;
      float& counted = what.to.rows[step.slot[b] * what.to.rows_stride];
      const auto n = static_cast<float>(last - first);
      parallel_ranges(n_channels, kGrain, [&](int begin, int end) {
        for (int j = begin; j < end; ++j) {
          float sum = what.blend > 0 ? 0 : sums[j];
          for (int64_t r = first; r < last; ++r) {
            const float x = to_float(row(r)[j]);
            sum += x * x * scale[static_cast<size_t>(r)];
          }
          sums[j] =
              what.blend > 0 ? (1 - what.blend) * sums[j] + what.blend * (counted / n) * sum : sum;
        }
      });
      if (what.blend == 0) counted += n;
    }
  });
}

void channel_norms_gate_up(float* out, const PackedWeights& w, Stream stream) {
  on_host(stream);
  const int64_t n = w.out() / 2;
  with_type(w.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* rows = static_cast<const T*>(trainable_rows(w));
    const auto square = [&](int64_t row) {
      return dot(rows + row * w.in(), rows + row * w.in(), w.in());
    };
    for (int64_t j = 0; j < n; ++j) out[j] = std::sqrt(square(j)) * std::sqrt(square(n + j));
  });
}

void channel_norms_down(float* out, const PackedWeights& w, Stream stream) {
  on_host(stream);
  with_type(w.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* rows = static_cast<const T*>(w.input_rows());
    for (int64_t j = 0; j < w.in(); ++j)
      out[j] = std::sqrt(dot(rows + j * w.out(), rows + j * w.out(), w.out()));
  });
}

void score_channels(const ScoreChannels& what, const StepArrays& step, Stream stream) {
  on_host(stream);
  const auto n = static_cast<int>(what.gate.row_size());
  with_type(what.gate.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_ranges(n, kGrain, [&](int begin, int end) {
      for (int j = begin; j < end; ++j) {
        float score = 0;
        for (int b = 0; b < step.n_seqs; ++b) {
          float rms = 1;
          if (what.weights.sums != nullptr) {
            const float rows = what.weights.rows[step.slot[b] * what.weights.rows_stride];
            const float sum = what.weights.sums[step.slot[b] * what.weights.slot_stride + j];
            rms = rows > 0 ? std::sqrt(sum / rows) : 1;
          }
          for (int r = step.row_begin[b]; r < step.row_begin[b + 1]; ++r) {
            const float x = std::abs(to_float(what.gate.as<T>()[int64_t{r} * n + j])) * rms;
            score = what.largest ? std::max(score, x) : score + x;
          }
        }
        what.scores[j] = score * (what.norms != nullptr ? what.norms[j] : 1);
      }
    });
  });
}

void choose_channels(const ChooseChannels& what, Stream stream) {
  on_host(stream);
  parallel_for(what.n_lists, [&](int l) {
    const float* scores = what.scores + l * what.score_stride;
    std::vector<int32_t> all(static_cast<size_t>(what.n_channels));
    std::iota(all.begin(), all.end(), 0);
    std::nth_element(all.begin(), all.begin() + what.keep, all.end(), [&](int32_t a, int32_t b) {
      return scores[a] != scores[b] ? scores[a] > scores[b] : a > b;
    });
    std::sort(all.begin(), all.begin() + what.keep);
    std::copy_n(all.begin(), what.keep, what.ids + l * what.id_stride);
    what.n[l * what.n_stride] = what.keep;
  });
}

void channels_above(const ChooseChannels& what, float threshold, Stream stream) {
  on_host(stream);
  for (int l = 0; l < what.n_lists; ++l) {
    int n = 0;
    for (int j = 0; j < what.n_channels; ++j)
      if (what.scores[l * what.score_stride + j] >= threshold)
        what.ids[l * what.id_stride + n++] = j;
    what.n[l * what.n_stride] = n;
  }
}

void unite_channels(const UniteChannelsParams& params, Stream stream) {
  kUnite.run(params, params.n_lists, int64_t{params.n_channels} * int64_t{sizeof(int32_t)}, stream);
}

}  // namespace tandem::ops
