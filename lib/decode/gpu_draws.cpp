#include "decode/gpu_draws.h"

#include <algorithm>

#include "base/check.h"
#include "base/rng.h"
#include "kernels/sample/row_split.h"
#include "kernels/sample/sample_cuda.h"
#include "kv/device_step.h"
#include "ops/transfers.h"

namespace tandem::decode {
namespace {

constexpr const char* kLast = "sampling/last tokens";
constexpr const char* kRows = "sampling/rows";

/// Of the kernels that work on rows of logits.
size_t row_bytes(const SamplerBounds& b) {
  return cuda::row_memory_bytes(b.gpu, b.vocab, b.max_seqs, 1);
}

/// What a draw gives.
struct Results {
  size_t tokens, logprobs, lse, top_ids, top_logprobs, bytes;

  explicit Results(const SamplerBounds& b) {
    const auto n = static_cast<size_t>(b.max_seqs);
    tokens = 0;
    logprobs = tokens + n * sizeof(int32_t);
    lse = logprobs + n * sizeof(float);
    top_ids = lse + n * sizeof(float);
    top_logprobs = top_ids + n * kMaxTopNCuda * sizeof(int32_t);
    bytes = top_logprobs + n * kMaxTopNCuda * sizeof(float);
  }
};

/// A draw's inputs and the arrays of the decode step that goes with it.
size_t parcel_bytes(const SamplerBounds& b) {
  const auto n = static_cast<size_t>(b.max_seqs);
  return kv::DeviceStep::outbox_bytes(b.max_seqs, b.max_seqs) +
         Outbox::aligned(n * sizeof(double)) + Outbox::aligned(n * sizeof(int32_t)) +
         Outbox::aligned((n + 1) * sizeof(int32_t)) +
         Outbox::aligned(n * static_cast<size_t>(b.max_tokens) * sizeof(int32_t));
}

Courier::Spec courier_spec(const SamplerBounds& b) {
  return {.name = "sampling",
          .in_bytes = parcel_bytes(b),
          .out_bytes = Results(b).bytes,
          .turns = 4};  // more than draws in flight and the one being sent
}

}  // namespace

void GpuDraws::plan(const SamplerBounds& b, Device device, MemoryPlan& plan) {
  Courier::plan(courier_spec(b), device, plan);
  plan.add(kLast, static_cast<size_t>(b.max_seqs) * sizeof(int32_t), device);
  if (const size_t bytes = row_bytes(b); bytes > 0) plan.add(kRows, bytes, device);
}

GpuDraws::GpuDraws(const SamplerBounds& bounds, Arena& arena, const Exec& exec)
    : bounds_(bounds),
      exec_(exec),
      courier_(courier_spec(bounds), arena, exec),
      last_(static_cast<int32_t*>(arena.take(kLast))),
      rows_(row_bytes(bounds) > 0 ? arena.take(kRows) : nullptr) {}

void GpuDraws::start(const SamplerSpec& spec) {
  if (spec.top_logprobs > kMaxTopNCuda)
    throw recipe_error("output.top_logprobs", "{} alternatives, a GPU reports at most {}",
                       spec.top_logprobs, kMaxTopNCuda)
        .hint("lower it, or use --device cpu");
  spec_ = spec;
  flying_.clear();
}

void GpuDraws::send(std::span<const DrawSeq> seqs, int places) {
  const size_t n = static_cast<size_t>(places);
  TANDEM_CHECK(seqs.size() <= n && places <= bounds_.max_seqs, "{} sequences, {} places",
               seqs.size(), places);
  const auto uniform = outbox_->take<double>(n);
  const auto slot = outbox_->take<int32_t>(n);
  const auto seen_begin = outbox_->take<int32_t>(n + 1);
  in_ = {places, uniform.device, slot.device, seen_begin.device,
         reinterpret_cast<const int32_t*>(outbox_->device_begin())};
  size_t n_seen = 0;
  for (const DrawSeq& s : seqs) n_seen += spec_.rule.needs_seen() ? s.tokens.size() : 0;
  // Taken last, as their number differs from draw to draw; counted from the parcels' place, which
  // does not.
  const auto seen = outbox_->take<int32_t>(n_seen);
  size_t at = static_cast<size_t>(seen.device - in_.seen);
  seen_begin.host[0] = static_cast<int32_t>(at);
  int32_t* next = seen.host;
  for (size_t i = 0; i < n; ++i) {
    const bool is_padding = i >= seqs.size();
    uniform.host[i] = is_padding ? 0 : draw_uniform(spec_.seed, seqs[i]);
    slot.host[i] = is_padding ? -1 : seqs[i].slot;
    if (spec_.rule.needs_seen() && !is_padding) {
      next = std::copy(seqs[i].tokens.begin(), seqs[i].tokens.end(), next);
      at += seqs[i].tokens.size();
    }
    seen_begin.host[i + 1] = static_cast<int32_t>(at);
  }
  courier_.send();
}

const int32_t* GpuDraws::load_ids() {
  auto* ids = reinterpret_cast<int32_t*>(courier_.results() + Results(bounds_).tokens);
  ops::load_slot_ids({.last = last_, .slot = in_.slot, .ids = ids, .n = in_.places},
                     exec_.stream());
  return ids;
}

void GpuDraws::launch(const Tensor& logits) {
  const int n = in_.places;
  const Results out(bounds_);
  std::byte* const results = courier_.results();
  const auto vocab = static_cast<int>(logits.row_size());
  const ops::SampleRule& rule = spec_.rule;
  auto* tokens = reinterpret_cast<int32_t*>(results + out.tokens);
  auto* lse = reinterpret_cast<float*>(results + out.lse);
  ops::sample({.tokens = tokens,
               .logits = logits.as<float>(),
               .uniform = in_.uniform,
               .seen = in_.seen,
               .seen_begin = rule.needs_seen() ? in_.seen_begin : nullptr,
               .n_rows = n,
               .vocab = vocab,
               .rule = rule.kept(),
               .workspace = rows_,
               .logprobs = reinterpret_cast<float*>(results + out.logprobs),
               .lse = lse},
              exec_.stream());
  if (spec_.top_logprobs > 0)
    ops::top_n({.ids = reinterpret_cast<int32_t*>(results + out.top_ids),
                .logprobs = reinterpret_cast<float*>(results + out.top_logprobs),
                .logits = logits.as<float>(),
                .lse = lse,
                .n_rows = n,
                .vocab = vocab,
                .n = std::min(spec_.top_logprobs, vocab),
                .workspace = rows_},
               exec_.stream());
  ops::store_slot_ids({.last = last_, .slot = in_.slot, .ids = tokens, .n = n}, exec_.stream());
}

void GpuDraws::finish(int n) {
  const Results at(bounds_);
  flying_.push_back({courier_.fetch(spec_.top_logprobs > 0 ? at.bytes : at.lse), n});
}

std::vector<Drawn> GpuDraws::collect() {
  const Flying f = flying_.front();
  flying_.pop_front();
  const Results at(bounds_);
  const std::byte* host = courier_.wait(f.receipt);
  const auto* tokens = reinterpret_cast<const int32_t*>(host + at.tokens);
  const auto* logprobs = reinterpret_cast<const float*>(host + at.logprobs);
  const auto* top_ids = reinterpret_cast<const int32_t*>(host + at.top_ids);
  const auto* top_logprobs = reinterpret_cast<const float*>(host + at.top_logprobs);
  const auto n_top = static_cast<size_t>(std::min(spec_.top_logprobs, bounds_.vocab));
  std::vector<Drawn> drawn(static_cast<size_t>(f.n));
  for (size_t i = 0; i < drawn.size(); ++i) {
    drawn[i].id = tokens[i];
    drawn[i].logprob = logprobs[i];
    for (size_t k = i * n_top; k < (i + 1) * n_top; ++k)
      drawn[i].top.emplace_back(top_ids[k], top_logprobs[k]);
  }
  ops::check_valid({tokens, drawn.size()});
  return drawn;
}

}  // namespace tandem::decode
