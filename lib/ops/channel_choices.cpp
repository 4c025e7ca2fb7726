#include <algorithm>

#include "base/check.h"
#include "ops/channels.h"
#include "ops/linear_device.h"
#include "ops/linear_gradient.h"
#include "ops/operation.h"
#include "tensor/comm.h"

namespace tandem::ops {
namespace {

void norms(const ChannelNormsParams& p, Stream stream) {
  const int64_t bytes = int64_t{p.n_parts} * p.width * static_cast<int64_t>(dtype_bytes(p.type));
  TANDEM_OPERATION(channel_norms).run(p, p.n_channels, bytes, stream);
}

void choose(const Operation<ChooseChannelsParams>& how, const ChooseChannels& what, float threshold,
            Stream stream) {
  TANDEM_CHECK(stream.handle == nullptr || what.n_channels <= kMaxChosenFrom,
               "choosing among {} neurons exceeds the GPU's limit", what.n_channels);
  how.run({.ids = what.ids,
           .n = what.n,
           .scores = what.scores,
           .id_stride = what.id_stride,
           .n_stride = what.n_stride,
           .score_stride = what.score_stride,
           .n_lists = what.n_lists,
           .n_channels = what.n_channels,
           .keep = what.keep,
           .threshold = threshold,
           .counted = what.counted},
          what.n_lists, int64_t{what.n_channels} * int64_t{sizeof(float)}, stream);
}

}  // namespace

void add_squares(const AddSquares& what, const StepArrays& step, int n_channels, Stream stream) {
  const Tensor& x = what.x;
  TANDEM_CHECK(what.first + n_channels <= x.row_size(), "neurons {} to {} exceed rows of {}",
               what.first, what.first + n_channels, x.row_size());
  check_stream("add_squares", x, stream);
  const auto element = static_cast<int64_t>(dtype_bytes(x.dtype())), stride = x.row_size();
  const auto n_rows = static_cast<int>(x.rows());
  const char* const channels = static_cast<const char*>(x.raw()) + what.first * element;
  const int at_once = what.scales != nullptr ? kScaledRows : n_rows;
  for (int first = 0; first < n_rows; first += at_once) {
    const int n = std::min(at_once, n_rows - first);
    if (what.scales != nullptr)
      TANDEM_OPERATION(square_scales)
          .run({.scale = what.scales,
                .x = channels + first * stride * element,
                .row_stride = stride,
                .n_rows = n,
                .n_channels = n_channels,
                .x_type = x.dtype(),
                .sums = what.comm != nullptr},
               n, n_channels * element, stream);
    if (what.scales != nullptr && what.comm != nullptr)
      what.comm->sum({what.scales, DType::f32, {n}, x.device()}, stream);
    TANDEM_OPERATION(add_squares)
        .run({.to = what.to,
              .x = channels,
              .scale = what.scales,
              .row_stride = stride,
              .slot = step.slot,
              .row_begin = step.row_begin,
              .first_row = first,
              .last_row = first + n,
              .n_seqs = step.n_seqs,
              .n_channels = n_channels,
              .blend = what.blend,
              .x_type = x.dtype(),
              .sums = what.scales != nullptr && what.comm != nullptr},
             n_channels, n * element, stream);
  }
}

void channel_norms_gate_up(float* out, const PackedWeights& w, Stream stream) {
  const int64_t n = w.out() / 2;
  norms({.norms = out,
         .weights = w.device_codes() != nullptr ? nullptr : trainable_rows(w),
         .part_stride = n * w.in(),
         .channel_stride = w.in(),
         .number_stride = 1,
         .n_parts = 2,
         .n_channels = static_cast<int>(n),
         .width = static_cast<int>(w.in()),
         .type = w.input(),
         .codes = codes_or_none(w)},
        stream);
}

void channel_norms_down(float* out, const PackedWeights& w, Stream stream) {
  norms({.norms = out,
         .weights = w.input_rows(),
         .part_stride = 0,
         .channel_stride = w.out(),
         .number_stride = 1,
         .n_parts = 1,
         .n_channels = static_cast<int>(w.in()),
         .width = static_cast<int>(w.out()),
         .type = w.input(),
         .codes = codes_or_none(w)},
        stream);
}

void score_channels(const ScoreChannels& what, const StepArrays& step, Stream stream) {
  check_stream("score_channels", what.gate, stream);
  const int64_t element = static_cast<int64_t>(dtype_bytes(what.gate.dtype()));
  TANDEM_OPERATION(score_channels)
      .run({.scores = what.scores,
            .gate = what.gate.raw(),
            .weights = what.weights,
            .norms = what.norms,
            .slot = step.slot,
            .row_begin = step.row_begin,
            .n_seqs = step.n_seqs,
            .n_channels = static_cast<int>(what.gate.row_size()),
            .largest = what.largest,
            .type = what.gate.dtype()},
           static_cast<int>(what.gate.row_size()), what.gate.rows() * element, stream);
}

void choose_channels(const ChooseChannels& what, Stream stream) {
  TANDEM_CHECK(what.keep > 0 && what.keep <= what.n_channels, "cannot keep {} of {} neurons",
               what.keep, what.n_channels);
  choose(TANDEM_OPERATION(choose_channels), what, 0, stream);
}

void channels_above(const ChooseChannels& what, float threshold, Stream stream) {
  choose(TANDEM_OPERATION(channels_above), what, threshold, stream);
}

}  // namespace tandem::ops
