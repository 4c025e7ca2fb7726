#include "decode/gpu_draws.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/rng.h"
#include "kernels/cuda_table.h"
#include "kernels/sample/row_split.h"

namespace tandem::decode {
namespace {

constexpr const char* kIn = "sampling/inputs";
constexpr const char* kOut = "sampling/results";
constexpr const char* kLast = "sampling/last tokens";
constexpr const char* kRows = "sampling/rows";

/// Of the kernels that work on rows of logits.
size_t row_bytes(const SamplerBounds& b) {
  return cuda::row_memory_bytes(b.gpu, b.vocab, b.max_seqs, 1);
}

/// What a draw reads. Where it lies depends on the bounds alone, for graphs.
struct Inputs {
  size_t uniform, slot, seen_begin, seen, bytes;

  explicit Inputs(const SamplerBounds& b) {
    const auto n = static_cast<size_t>(b.max_seqs);
    uniform = 0;
    slot = uniform + n * sizeof(double);
    seen_begin = slot + n * sizeof(int32_t);
    seen = seen_begin + (n + 1) * sizeof(int32_t);
    bytes = seen + n * static_cast<size_t>(b.max_tokens) * sizeof(int32_t);
  }
};

/// What it gives.
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

}  // namespace

void GpuDraws::plan(const SamplerBounds& b, Device device, MemoryPlan& plan) {
  plan.add(kIn, Inputs(b).bytes, device);
  plan.add(kOut, Results(b).bytes, device);
  plan.add(kLast, static_cast<size_t>(b.max_seqs) * sizeof(int32_t), device);
  if (const size_t bytes = row_bytes(b); bytes > 0) plan.add(kRows, bytes, device);
  plan.add("sampling/staging", kRing * (Inputs(b).bytes + Results(b).bytes));
}

GpuDraws::GpuDraws(const SamplerBounds& bounds, Arena& arena, const Exec& exec)
    : bounds_(bounds),
      exec_(exec),
      in_(static_cast<std::byte*>(arena.take(kIn))),
      out_(static_cast<std::byte*>(arena.take(kOut))),
      last_(static_cast<int32_t*>(arena.take(kLast))),
      rows_(row_bytes(bounds) > 0 ? arena.take(kRows) : nullptr) {
  for (Turn& t : ring_) {
    t.in = std::make_unique<cuda::PinnedBuffer>(Inputs(bounds).bytes);
    t.out = std::make_unique<cuda::PinnedBuffer>(Results(bounds).bytes);
    t.sent = std::make_unique<cuda::Event>();
    t.done = std::make_unique<cuda::Event>();
  }
}

void GpuDraws::start(const SamplerSpec& spec) {
  if (spec.top_logprobs > kMaxTopNCuda)
    throw recipe_error("output.top_logprobs", "{} alternatives, a GPU reports at most {}",
                       spec.top_logprobs, kMaxTopNCuda)
        .hint("lower it, or use --device cpu");
  spec_ = spec;
  flying_.clear();
}

void GpuDraws::prepare(std::span<const DrawSeq> seqs) {
  TANDEM_CHECK(seqs.size() <= static_cast<size_t>(bounds_.max_seqs), "{} sequences", seqs.size());
  const Inputs at(bounds_);
  Turn& turn = ring_[next_in_];
  next_in_ = (next_in_ + 1) % kRing;
  turn.sent->wait();  // of kRing draws ago
  std::byte* host = turn.in->data();
  auto* uniform = reinterpret_cast<double*>(host + at.uniform);
  auto* slot = reinterpret_cast<int32_t*>(host + at.slot);
  auto* seen_begin = reinterpret_cast<int32_t*>(host + at.seen_begin);
  auto* seen = reinterpret_cast<int32_t*>(host + at.seen);
  size_t n_seen = 0;
  seen_begin[0] = 0;
  for (size_t i = 0; i < seqs.size(); ++i) {
    uniform[i] = draw_uniform(spec_.seed, seqs[i]);
    slot[i] = seqs[i].slot;
    if (spec_.rule.needs_seen()) {
      std::copy(seqs[i].tokens.begin(), seqs[i].tokens.end(), seen + n_seen);
      n_seen += seqs[i].tokens.size();
    }
    seen_begin[i + 1] = static_cast<int32_t>(n_seen);
  }
  exec_.queue->copy_in(in_, host, at.seen + n_seen * sizeof(int32_t));
  turn.sent->record(*exec_.queue);
}

const int32_t* GpuDraws::load_ids(int n) {
  auto* ids = reinterpret_cast<int32_t*>(out_ + Results(bounds_).tokens);
  const auto* slot = reinterpret_cast<const int32_t*>(in_ + Inputs(bounds_).slot);
  cuda_table().load_slot_ids({.last = last_, .slot = slot, .ids = ids, .n = n}, exec_.stream());
  cuda::launched("load_slot_ids", exec_.stream());
  return ids;
}

void GpuDraws::launch(int n, const Tensor& logits) {
  const Inputs in(bounds_);
  const Results out(bounds_);
  const auto vocab = static_cast<int>(logits.row_size());
  const ops::SampleRule& rule = spec_.rule;
  auto* tokens = reinterpret_cast<int32_t*>(out_ + out.tokens);
  auto* lse = reinterpret_cast<float*>(out_ + out.lse);
  cuda_table().sample(
      {.sample = {.tokens = tokens,
                  .logits = logits.as<float>(),
                  .uniform = reinterpret_cast<const double*>(in_ + in.uniform),
                  .seen = reinterpret_cast<const int32_t*>(in_ + in.seen),
                  .seen_begin = rule.needs_seen()
                                    ? reinterpret_cast<const int32_t*>(in_ + in.seen_begin)
                                    : nullptr,
                  .n_rows = n,
                  .vocab = vocab,
                  .rule = rule.kept(),
                  .workspace = rows_},
       .next_ids = nullptr,
       .logprobs = reinterpret_cast<float*>(out_ + out.logprobs),
       .lse = lse},
      exec_.stream());
  cuda::launched("sample", exec_.stream());
  if (spec_.top_logprobs > 0) {
    cuda_table().top_n({.ids = reinterpret_cast<int32_t*>(out_ + out.top_ids),
                        .logprobs = reinterpret_cast<float*>(out_ + out.top_logprobs),
                        .logits = logits.as<float>(),
                        .lse = lse,
                        .n_rows = n,
                        .vocab = vocab,
                        .n = std::min(spec_.top_logprobs, vocab),
                        .workspace = rows_},
                       exec_.stream());
    cuda::launched("top_n", exec_.stream());
  }
  const auto* slot = reinterpret_cast<const int32_t*>(in_ + in.slot);
  cuda_table().store_slot_ids({.last = last_, .slot = slot, .ids = tokens, .n = n}, exec_.stream());
  cuda::launched("store_slot_ids", exec_.stream());
}

void GpuDraws::finish(int n) {
  const Results at(bounds_);
  Turn& turn = ring_[next_out_];
  const size_t bytes = spec_.top_logprobs > 0 ? at.bytes : at.lse;
  exec_.queue->copy_out(turn.out->data(), out_, bytes);
  turn.done->record(*exec_.queue);
  flying_.push_back({next_out_, n});
  next_out_ = (next_out_ + 1) % kRing;
}

std::vector<Drawn> GpuDraws::collect() {
  const Flying f = flying_.front();
  flying_.pop_front();
  ring_[f.turn].done->wait();
  const Results at(bounds_);
  const std::byte* host = ring_[f.turn].out->data();
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
